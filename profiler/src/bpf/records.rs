//! Records and events of the programs, from their bytes.

use profiler_ebpf::{
    event::{self, Environment, Exec, Fork, ProcessEntry, ThreadEnd},
    histogram::Histogram,
    record::{self, Header, PresentWait, ProcessRecord, ThreadRecord, Unchanged, Usage},
};

use super::pod::{bytes_mut, split, zeroed};

/// A record of a reading.
#[derive(Debug)]
pub enum Record<'a> {
    /// A process, before its first thread.
    Process(&'a ProcessRecord),
    /// A process whose counters have not changed.
    Unchanged(&'a Unchanged),
    Thread(&'a ThreadRecord),
    /// Run-queue waits of the previous thread.
    Runqueue(&'a Histogram, &'a PresentWait),
    /// Usage of the ended threads of the previous process.
    Ended(&'a Usage),
}

/// An event of the ring buffer.
#[derive(Debug)]
pub enum Event {
    /// A process of the target was created.
    Fork(Fork),
    /// A process outside the target was created, while the target is being found.
    OutOfScopeFork(Fork),
    /// A process runs another program; with the bytes of its command line.
    Exec(Box<Exec>, Vec<u8>),
    /// Variables with which a process runs a program, after the exec.
    Environment(Box<Environment>),
    /// A process has ended.
    Exit(Box<ProcessEntry>),
    ThreadEnd(Box<ThreadEnd>),
    /// A task was moved between cgroups.
    CgroupMove,
}

fn first_word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.first_chunk()?))
}

/// The records of a reading, in order. `bytes` must be 8-byte aligned.
pub fn records(mut bytes: &[u8]) -> impl Iterator<Item = Record<'_>> {
    std::iter::from_fn(move || {
        Some(match first_word(bytes)? {
            record::PROCESS => Record::Process(split(&mut bytes)?),
            record::THREAD => Record::Thread(split(&mut bytes)?),
            record::UNCHANGED => Record::Unchanged(split(&mut bytes)?),
            record::RUNQUEUE => {
                split::<Header>(&mut bytes)?;
                Record::Runqueue(split(&mut bytes)?, split(&mut bytes)?)
            }
            record::ENDED => {
                split::<Header>(&mut bytes)?;
                Record::Ended(split(&mut bytes)?)
            }
            _ => return None,
        })
    })
}

/// An event of the ring buffer, whose items are 8-byte aligned.
pub fn event(mut bytes: &[u8]) -> Option<Event> {
    Some(match first_word(bytes)? {
        event::FORK => Event::Fork(*split(&mut bytes)?),
        event::OUT_OF_SCOPE_FORK => Event::OutOfScopeFork(*split(&mut bytes)?),
        event::EXEC => {
            let header: &Exec = split(&mut bytes)?;
            let args = bytes.get(..header.args_len as usize)?;
            Event::Exec(Box::new(*header), args.to_vec())
        }
        event::ENVIRONMENT => Event::Environment(environment(bytes)?),
        event::EXIT => Event::Exit(Box::new(*split(&mut bytes)?)),
        event::THREAD_END => Event::ThreadEnd(Box::new(*split(&mut bytes)?)),
        event::CGROUP_MOVE => Event::CgroupMove,
        _ => return None,
    })
}

/// An environment, which is sent without its unused elements.
fn environment(bytes: &[u8]) -> Option<Box<Environment>> {
    let mut environment: Box<Environment> = Box::new(zeroed());
    let to = bytes_mut(std::slice::from_mut(&mut *environment));
    let length = bytes.len().min(to.len());
    to[..length].copy_from_slice(&bytes[..length]);
    (length >= Environment::HEADER).then_some(environment)
}

#[cfg(test)]
mod tests {
    use profiler_ebpf::event::VARIABLE_MAX;

    use super::{super::pod::bytes, *};

    #[test]
    fn environments_are_as_long_as_their_count() {
        let mut sent: Environment = zeroed();
        sent.kind = event::ENVIRONMENT;
        sent.pid = 7;
        sent.count = 1;
        sent.variables[0][..4].copy_from_slice(b"A=1\0");
        let sent = bytes(std::slice::from_ref(&sent));
        let received = event(&sent[..Environment::HEADER + VARIABLE_MAX]);
        let Some(Event::Environment(received)) = received else {
            panic!("another event");
        };
        assert_eq!((received.pid, received.count), (7, 1));
        assert!(received.variables[0].starts_with(b"A=1\0"));
        assert_eq!(received.variables[1], [0; VARIABLE_MAX]);
        assert!(event(&sent[..Environment::HEADER - 1]).is_none());
    }
}
