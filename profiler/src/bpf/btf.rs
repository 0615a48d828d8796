//! Offsets of members of kernel structs, from the BTF of the running kernel.
//!
//! Reads the parts of the format (Documentation/bpf/btf.rst) that are needed to find a struct,
//! follow a path of members, and count the parameters of a function.

use std::{hash::BuildHasher as _, path::Path};

use hashbrown::{DefaultHashBuilder, HashTable};
use thiserror::Error;

/// Why the kernel's type information cannot be read.
#[derive(Debug, Error)]
pub enum BtfError {
    /// The file does not exist or cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Path of the file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is not BTF.
    #[error("{path} is not BTF: {problem}")]
    Format {
        /// Path of the file.
        path: String,
        /// The first error in it.
        problem: &'static str,
    },
}

const MAGIC: u16 = 0xeb9f;
const KIND_PTR: u32 = 2;
const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;
const KIND_VOLATILE: u32 = 9;
const KIND_CONST: u32 = 10;
const KIND_RESTRICT: u32 = 11;
const KIND_FUNC: u32 = 12;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_TYPE_TAG: u32 = 18;

/// The kernel's types.
pub struct Btf {
    data: Vec<u8>,
    strings: usize,
    /// Offset of each type's record in `data`; type 0 is `void`.
    types: Vec<u32>,
    /// Ids of structs, typedefs and functions, by kind and name.
    named: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Btf {
    /// Parses a file such as `/sys/kernel/btf/vmlinux`.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or is not BTF in this machine's byte order.
    pub fn read(path: &Path) -> Result<Self, BtfError> {
        let name = || path.display().to_string();
        let data = std::fs::read(path).map_err(|source| BtfError::Read {
            path: name(),
            source,
        })?;
        Self::parse(data).map_err(|problem| BtfError::Format {
            path: name(),
            problem,
        })
    }

    fn parse(data: Vec<u8>) -> Result<Self, &'static str> {
        let mut btf = Self {
            data,
            strings: 0,
            types: vec![0],
            named: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        };
        let magic = btf.word(0).ok_or("too short")? & 0xffff;
        if magic != u32::from(MAGIC) {
            return Err("wrong magic number");
        }
        let [header, type_off, type_len, str_off, str_len] =
            [4, 8, 12, 16, 20].map(|at| btf.word(at).map_or(usize::MAX, |word| word as usize));
        let start = header.checked_add(type_off).ok_or("bad header")?;
        let end = start.checked_add(type_len).ok_or("bad header")?;
        btf.strings = header.checked_add(str_off).ok_or("bad header")?;
        let strings_end = btf.strings.checked_add(str_len).ok_or("bad header")?;
        if end.max(strings_end) > btf.data.len() {
            return Err("truncated");
        }
        let mut named = Vec::new();
        let mut at = start;
        while at < end {
            let id = u32::try_from(btf.types.len()).map_err(|_| "too many types")?;
            btf.types.push(u32::try_from(at).map_err(|_| "too large")?);
            let (kind, vlen) = btf.info(at).ok_or("truncated")?;
            if matches!(kind, KIND_STRUCT | KIND_TYPEDEF | KIND_FUNC) {
                btf.kind_and_name(id).ok_or("bad name")?;
                named.push(id);
            }
            let tail = match kind {
                1 | 14 | 17 => 4, // INT, VAR, DECL_TAG
                KIND_ARRAY => 12,
                KIND_STRUCT | KIND_UNION | 15 | 19 => 12 * vlen, // … DATASEC, ENUM64
                KIND_ENUM | KIND_FUNC_PROTO => 8 * vlen,
                0 | KIND_PTR | 7..=12 | 16 | KIND_TYPE_TAG => 0,
                _ => return Err("unknown kind of type"),
            };
            at += 12 + tail;
        }
        btf.index(named);
        Ok(btf)
    }

    /// Makes types available by name. Of those with the same name, the first one is.
    fn index(&mut self, ids: Vec<u32>) {
        let mut named = HashTable::with_capacity(ids.len());
        let hash = |id: &u32| self.hasher.hash_one(self.kind_and_name(*id));
        for id in ids {
            let is_same = |other: &u32| self.kind_and_name(*other) == self.kind_and_name(id);
            named.entry(hash(&id), is_same, hash).or_insert(id);
        }
        self.named = named;
    }

    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.data.get(at..at.checked_add(4)?)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    }

    fn string(&self, offset: u32) -> Option<&[u8]> {
        let rest = self.data.get(self.strings + offset as usize..)?;
        rest.split(|byte| *byte == 0).next()
    }

    /// Kind and number of members.
    fn info(&self, at: usize) -> Option<(u32, usize)> {
        let info = self.word(at + 4)?;
        Some((info >> 24 & 0x1f, (info & 0xffff) as usize))
    }

    fn at(&self, id: u32) -> Option<usize> {
        self.types
            .get(id as usize)
            .filter(|at| **at != 0)
            .map(|at| *at as usize)
    }

    /// Follows typedefs and qualifiers.
    fn resolve(&self, mut id: u32) -> Option<usize> {
        for _ in 0..32 {
            let at = self.at(id)?;
            match self.info(at)?.0 {
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT | KIND_TYPE_TAG => {
                    id = self.word(at + 8)?;
                }
                _ => return Some(at),
            }
        }
        None
    }

    fn kind_and_name(&self, id: u32) -> Option<(u32, &[u8])> {
        let at = self.at(id)?;
        let name = self.string(self.word(at)?)?;
        Some((self.info(at)?.0, name))
    }

    fn named(&self, kind: u32, name: &str) -> Option<u32> {
        let wanted = Some((kind, name.as_bytes()));
        let hash = self.hasher.hash_one(wanted);
        let found = |id: &u32| self.kind_and_name(*id) == wanted;
        self.named.find(hash, found).copied()
    }

    /// Size of a struct in bytes.
    pub fn size_of(&self, name: &str) -> Option<u32> {
        self.word(self.at(self.named(KIND_STRUCT, name)?)? + 8)
    }

    /// Byte offset of a member such as `se.exec_start`; `None` if it does not exist or is a bit
    /// field.
    pub fn offset_of(&self, name: &str, path: &str) -> Option<u32> {
        let mut id = self.named(KIND_STRUCT, name)?;
        let mut offset = 0;
        for member in path.split('.') {
            let (bits, ty) = self.member(id, member.as_bytes(), 0)?;
            if bits % 8 != 0 {
                return None;
            }
            offset += bits / 8;
            id = ty;
        }
        Some(offset)
    }

    /// Bit offset and type of a member. Anonymous structs and unions are searched as well.
    fn member(&self, id: u32, name: &[u8], depth: u32) -> Option<(u32, u32)> {
        let at = self.resolve(id)?;
        let (kind, count) = self.info(at)?;
        if !matches!(kind, KIND_STRUCT | KIND_UNION) || depth > 8 {
            return None;
        }
        let bit_fields = self.word(at + 4)? >> 31 == 1;
        for index in 0..count {
            let member = at + 12 + 12 * index;
            let ty = self.word(member + 4)?;
            let raw = self.word(member + 8)?;
            let (bits, width) = if bit_fields {
                (raw & 0xff_ffff, raw >> 24)
            } else {
                (raw, 0)
            };
            let found = self.string(self.word(member)?)?;
            if found == name {
                return (width == 0).then_some((bits, ty));
            }
            if found.is_empty()
                && let Some((inner, ty)) = self.member(ty, name, depth + 1)
            {
                return Some((bits + inner, ty));
            }
        }
        None
    }

    /// Whether a member is an array.
    pub fn is_array(&self, name: &str, member: &str) -> bool {
        self.named(KIND_STRUCT, name)
            .and_then(|id| self.member(id, member.as_bytes(), 0))
            .and_then(|(_, ty)| self.resolve(ty))
            .and_then(|at| self.info(at))
            .is_some_and(|(kind, _)| kind == KIND_ARRAY)
    }

    /// Value of a constant in any 32-bit `enum`; all types are searched.
    pub fn enumerator(&self, name: &str) -> Option<u32> {
        let enums = self.types.iter().skip(1).filter_map(|at| {
            let at = *at as usize;
            let (kind, count) = self.info(at)?;
            (kind == KIND_ENUM).then_some((at, count))
        });
        enums
            .flat_map(|(at, count)| (0..count).map(move |index| at + 12 + 8 * index))
            .find(|at| {
                let found = self.word(*at).and_then(|offset| self.string(offset));
                found == Some(name.as_bytes())
            })
            .and_then(|at| self.word(at + 4))
    }

    /// Number of arguments of a tracepoint; `None` if it does not exist.
    pub fn tracepoint_arguments(&self, tracepoint: &str) -> Option<usize> {
        let id = self.named(KIND_TYPEDEF, &format!("btf_trace_{tracepoint}"))?;
        let pointer = self.resolve(id)?;
        // The first parameter is the private data of the tracepoint.
        self.parameters(self.word(pointer + 8)?)?.checked_sub(1)
    }

    /// Number of arguments of a function; `None` if it does not exist.
    pub fn function_arguments(&self, function: &str) -> Option<usize> {
        let at = self.at(self.named(KIND_FUNC, function)?)?;
        self.parameters(self.word(at + 8)?)
    }

    /// BTF that has only the typedefs and functions with these names, with the ids that they have here.
    /// aya searches all types for each hook.
    pub fn only(&self, names: impl Iterator<Item = String>) -> Vec<u8> {
        const HEADER: usize = 24;
        const RECORD: usize = 12;
        let types = RECORD * (self.types.len() - 1);
        let mut btf = vec![0; HEADER + types];
        let mut strings = vec![0];
        for name in names {
            for kind in [KIND_TYPEDEF, KIND_FUNC] {
                if let Some(id) = self.named(kind, &name) {
                    let record = &mut btf[HEADER + RECORD * (id as usize - 1)..][..RECORD];
                    record[..4].copy_from_slice(&length(strings.len()));
                    record[4..8].copy_from_slice(&(kind << 24).to_ne_bytes());
                }
            }
            strings.extend_from_slice(name.as_bytes());
            strings.push(0);
        }
        let header = [
            (u32::from(MAGIC) | 1 << 16).to_ne_bytes(),
            length(HEADER),
            length(0),
            length(types),
            length(types),
            length(strings.len()),
        ];
        btf[..HEADER].copy_from_slice(header.as_flattened());
        btf.append(&mut strings);
        btf
    }

    /// Number of parameters of a function's type.
    fn parameters(&self, id: u32) -> Option<usize> {
        let (kind, count) = self.info(self.resolve(id)?)?;
        (kind == KIND_FUNC_PROTO).then_some(count)
    }
}

fn length(bytes: usize) -> [u8; 4] {
    let length = u32::try_from(bytes).expect("less than 4 GiB");
    length.to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel() -> Btf {
        Btf::read(Path::new("/sys/kernel/btf/vmlinux")).expect("this kernel has BTF")
    }

    #[test]
    fn finds_members_of_the_running_kernel() {
        let btf = kernel();
        assert_eq!(btf.offset_of("upid", "nr"), Some(0));
        assert_eq!(btf.size_of("upid"), Some(16));
        let pid = btf.offset_of("task_struct", "pid").expect("pid");
        assert_eq!(btf.offset_of("task_struct", "tgid"), Some(pid + 4));
        let se = btf.offset_of("task_struct", "se").expect("se");
        let exec = btf
            .offset_of("sched_entity", "exec_start")
            .expect("exec_start");
        assert_eq!(
            btf.offset_of("task_struct", "se.exec_start"),
            Some(se + exec)
        );
        // Inside an anonymous struct.
        assert!(btf.offset_of("mm_struct", "hiwater_rss").is_some());
        // A bit field has no byte offset.
        assert_eq!(btf.offset_of("task_struct", "in_iowait"), None);
        assert_eq!(btf.offset_of("task_struct", "no_such_member"), None);
        assert_eq!(btf.offset_of("no_such_struct", "pid"), None);
        assert_eq!(btf.tracepoint_arguments("sched_process_fork"), Some(2));
        assert_eq!(btf.tracepoint_arguments("no_such_tracepoint"), None);
        assert_eq!(btf.function_arguments("vfs_read"), Some(4));
        assert_eq!(btf.function_arguments("no_such_function"), None);
        assert_eq!(btf.enumerator("BPF_MAP_TYPE_HASH"), Some(1));
        assert_eq!(btf.enumerator("NO_SUCH_CONSTANT"), None);
    }

    #[test]
    fn the_types_of_hooks_keep_their_ids() {
        let kernel = kernel();
        let names = ["btf_trace_sched_switch", "no_such_function", "vfs_read"];
        let only = kernel.only(names.into_iter().map(str::to_owned));
        let only = Btf::parse(only).expect("valid BTF");
        for (kind, name) in [
            (KIND_TYPEDEF, "btf_trace_sched_switch"),
            (KIND_FUNC, "vfs_read"),
        ] {
            assert!(kernel.named(kind, name).is_some(), "{name}");
            assert_eq!(only.named(kind, name), kernel.named(kind, name), "{name}");
        }
        assert_eq!(only.named(KIND_FUNC, "vfs_write"), None);
        assert_eq!(only.types.len(), kernel.types.len());
    }

    #[test]
    fn damaged_files_are_rejected() {
        let data = std::fs::read("/sys/kernel/btf/vmlinux").expect("this kernel has BTF");
        assert!(Btf::parse(Vec::new()).is_err());
        assert!(Btf::parse(vec![0; 64]).is_err());
        for length in (0..data.len()).step_by(data.len() / 97) {
            assert!(
                Btf::parse(data[..length].to_vec()).is_err(),
                "cut at {length}"
            );
        }
        // Flipped bytes can result in other types, but not in a panic.
        for at in (0..4096).step_by(211) {
            let mut flipped = data.clone();
            flipped[at] ^= 0xff;
            if let Ok(btf) = Btf::parse(flipped) {
                btf.offset_of("task_struct", "se.exec_start");
            }
        }
    }
}
