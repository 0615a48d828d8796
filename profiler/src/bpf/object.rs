//! Programs and maps of a loaded object by name or declaration.

use aya::{
    Ebpf,
    maps::{Array, HashMap, MapData, MapError},
    programs::ProgramError,
};
use profiler_ebpf::maps::{Key, Map, Named, Value};

use super::{error::BpfError, ring_buffer::RingBuffer};

/// A program in the object.
pub fn program<'a, P>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut P, BpfError>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    ebpf.program_mut(name)
        .ok_or(BpfError::NoProgram(name))?
        .try_into()
        .map_err(|error| BpfError::load(name, error))
}

/// The array with this declaration.
pub fn array<M: Map>(ebpf: &mut Ebpf) -> Result<Array<MapData, Value<M>>, BpfError>
where
    Value<M>: aya::Pod,
{
    take::<M, _>(ebpf)
}

/// The hash map with this declaration.
pub fn hash_map<M: Map>(ebpf: &mut Ebpf) -> Result<HashMap<MapData, Key<M>, Value<M>>, BpfError>
where
    Key<M>: aya::Pod,
    Value<M>: aya::Pod,
{
    take::<M, _>(ebpf)
}

/// The ring buffer with this declaration.
pub fn ring_buffer<M: Map>(ebpf: &mut Ebpf) -> Result<RingBuffer, BpfError> {
    let map = ebpf.take_map(M::NAME);
    let Some(aya::maps::Map::RingBuf(map)) = map else {
        return Err(BpfError::NoMap(M::NAME));
    };
    RingBuffer::new(map).map_err(|source| BpfError::ReadMap {
        map: M::NAME,
        source,
    })
}

/// A map that is taken out of the object.
fn take<M, T>(ebpf: &mut Ebpf) -> Result<T, BpfError>
where
    M: Named,
    T: TryFrom<aya::maps::Map, Error = MapError>,
{
    ebpf.take_map(M::NAME)
        .ok_or(BpfError::NoMap(M::NAME))?
        .try_into()
        .map_err(|source| BpfError::MapType {
            map: M::NAME,
            source,
        })
}
