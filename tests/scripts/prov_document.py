"""Prints the records of a PROV-JSON document, which `prov` has read, written and read again."""

import collections
import json
import sys

from prov.model import ProvDocument

document = ProvDocument.deserialize(sys.argv[1], format="json")
again = ProvDocument.deserialize(content=document.serialize(format="json"), format="json")
counts = collections.Counter(type(record).__name__ for record in document.get_records())
named = {
    str(record.identifier): str(record.label) for record in document.get_records() if record.is_element()
}
relations = collections.defaultdict(list)
for record in document.get_records():
    if record.is_relation():
        names = [str(value) for _, value in record.formal_attributes if value is not None]
        relations[type(record).__name__].append(names[:2])
dangling = [
    name
    for pairs in relations.values()
    for pair in pairs
    for name in pair
    if name not in named and ":" in name and name.startswith("run:")
]
json.dump(
    {
        "counts": counts,
        "is_same": document == again,
        "named": named,
        "relations": relations,
        "dangling": dangling,
    },
    sys.stdout,
)
