//! The BPF programs.
//!
//! | program | hook | does |
//! |---|---|---|
//! | `sched_switch` | `tp_btf/sched_switch` | run-queue waits, states, the end of threads |
//! | `sched_wakeup`, `sched_wakeup_new` | `tp_btf` | ends of sleep, wakeups |
//! | `process_fork`, `process_exec` | `tp_btf/sched_process_*` | who belongs to the target |
//! | `cgroup_attach` | `tp_btf/cgroup_attach_task` | tells that membership changed |
//! | `sock_send_length`, `sock_recv_length` | `tp_btf` | network bytes and calls |
//! | `tcp_state`, `tcp_retransmit`, `tcp_retransmit_synack`, `tcp_destroy`, `tcp_spliced` | `tp_btf` | TCP connections |
//! | `tcp_accept` | `fexit` | connections that are accepted |
//! | `udp_route4`, `udp_route6`, `udp_arrival` | `tp_btf`, `fexit` | where datagrams go and come from |
//! | `tcp_send` … `unix_packet_receive` | `fexit` | network bytes and calls on older kernels |
//! | `block_getrq`, `block_rq_insert`, `_issue`, `_merge`, `_complete`, `_nested` | `tp_btf` | block requests |
//! | `writeback_dirty_folio`, `writeback_single_inode_start`, `writeback_single_inode` | `tp_btf` | who dirtied what is written back |
//! | `sys_enter`, `sys_exit` | `tp_btf` | system calls, and the file I/O that they do |
//! | `uring_submit`, `uring_complete` | `tp_btf/io_uring_*` | file I/O through io_uring |
//! | `vfs_*`, `aio_*` | `fentry`, `fexit` | file I/O where all ways to it meet |
//! | `mark` | `iter/task` | finds the tasks of the target that exist already |
//! | `sample` | `iter/task` | one reading of all tasks of the target |

mod block;
mod environment;
mod files;
mod iter;
mod kernel;
mod lifecycle;
mod maps;
mod net;
mod per_key;
mod sched;
mod syscall_numbers;
mod syscalls;
mod target;
mod uring;
mod vfs;
mod writeback;
