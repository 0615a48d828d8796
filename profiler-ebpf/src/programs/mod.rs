//! The BPF programs.
//!
//! | program | hook | purpose |
//! |---|---|---|
//! | `sched_switch` | `tp_btf/sched_switch` | state of tasks, run-queue waits, exit of threads |
//! | `sched_wakeup`, `sched_wakeup_new` | `tp_btf` | end of sleep, wakeups |
//! | `process_fork`, `process_exec` | `tp_btf/sched_process_*` | follow and report processes |
//! | `process_exit` | `tp_btf/sched_process_exit` | largest memory of a process |
//! | `cgroup_attach` | `tp_btf/cgroup_attach_task` | report moves between cgroups |
//! | `sock_send_length`, `sock_recv_length` | `tp_btf` | bytes and calls on sockets |
//! | `tcp_state`, `tcp_retransmit`, `tcp_retransmit_synack`, `tcp_destroy`, `tcp_spliced` | `tp_btf` | TCP connections |
//! | `tcp_accept` | `fexit` | accepted connections |
//! | `udp_route4`, `udp_route6`, `udp_arrival` | `tp_btf`, `fexit` | scope of datagrams |
//! | `tcp_send` … `unix_packet_receive` | `fexit` | bytes and calls on sockets of older kernels |
//! | `block_getrq`, `block_rq_insert`, `_issue`, `_merge`, `_complete`, `_nested` | `tp_btf` | block requests |
//! | `writeback_dirty_folio`, `writeback_single_inode_start`, `writeback_single_inode` | `tp_btf` | owner of writeback |
//! | `sys_enter`, `sys_exit` | `tp_btf` | system calls, and file I/O with method `syscalls` |
//! | `uring_submit`, `uring_complete` | `tp_btf/io_uring_*` | file I/O through io_uring |
//! | `vfs_*`, `aio_*` | `fentry`, `fexit` | file I/O with method `vfs` |
//! | `mark` | `iter/task` | follow the existing tasks of the target |
//! | `names` | `iter.s/task` | arguments and environments of the followed processes |
//! | `survey` | `iter/task` | what a reading has to visit |
//! | `sample` | `iter/task` | one reading of all followed tasks |

mod active;
pub(crate) mod atomic;
pub(crate) mod block;
mod environment;
mod files;
mod iter;
mod kernel;
mod lifecycle;
mod maps;
mod memory;
mod names;
mod namespace;
pub(crate) mod net;
mod per_cpu;
mod per_key;
mod sched;
mod scratch;
mod syscall_numbers;
mod syscalls;
mod target;
pub(crate) mod task_storage;
pub(crate) mod uring;
mod vfs;
mod writeback;
