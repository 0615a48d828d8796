// The header in C++: nested regions that end with their scopes.
#include "profiler_mark.h"

int main() {
    profiler_region outer("outer");
    profiler_details more = {};
    more.parent = outer.id();
    profiler_region inner("inner", &more);
    profiler_end(profiler_start("again"));
    return outer.id() == inner.id();
}
