from ._command import main

raise SystemExit(main())
