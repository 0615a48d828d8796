//! Kernel struct members that the programs read.
//!
//! The controller looks each of them up in the running kernel's BTF and sets [`Offsets`] as a read-only global
//! before loading; the verifier then folds the loads to constants. A member that this kernel does not have is
//! [`MISSING`].

/// Offset of a member that this kernel does not have.
pub const MISSING: u32 = u32::MAX;

macro_rules! offsets {
    ($($field:ident = $type:literal . $path:literal;)*) => {
        /// Byte offsets of kernel struct members; named `<struct>_<member>`.
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct Offsets {
            $(#[doc = concat!("`", $type, ".", $path, "`")] pub $field: u32,)*
        }

        impl Offsets {
            /// Nothing known.
            pub const NONE: Self = Self { $($field: MISSING,)* };

            /// Asks `lookup(struct, path)` for each member.
            #[cfg(not(target_arch = "bpf"))]
            pub fn resolve(mut lookup: impl FnMut(&str, &str) -> Option<u32>) -> Self {
                Self { $($field: lookup($type, $path).unwrap_or(MISSING),)* }
            }

            /// `struct.member` of every member without which no program can work.
            #[cfg(not(target_arch = "bpf"))]
            pub fn missing(&self) -> Vec<&'static str> {
                let mut missing = Vec::new();
                $(if self.$field == MISSING && !OPTIONAL.contains(&stringify!($field)) {
                    missing.push(concat!($type, ".", $path));
                })*
                missing
            }
        }
    };
}

offsets! {
    task_pid = "task_struct"."pid";
    task_tgid = "task_struct"."tgid";
    task_group_leader = "task_struct"."group_leader";
    task_real_parent = "task_struct"."real_parent";
    task_start_boottime = "task_struct"."start_boottime";
    task_comm = "task_struct"."comm";
    task_state = "task_struct"."__state";
    task_exit_state = "task_struct"."exit_state";
    task_exit_code = "task_struct"."exit_code";
    task_on_cpu = "task_struct"."on_cpu";
    task_on_rq = "task_struct"."on_rq";
    task_mm = "task_struct"."mm";
    task_files = "task_struct"."files";
    task_signal = "task_struct"."signal";
    task_cred = "task_struct"."cred";
    task_thread_pid = "task_struct"."thread_pid";
    task_cgroups = "task_struct"."cgroups";
    task_utime = "task_struct"."utime";
    task_stime = "task_struct"."stime";
    task_nvcsw = "task_struct"."nvcsw";
    task_nivcsw = "task_struct"."nivcsw";
    task_min_flt = "task_struct"."min_flt";
    task_maj_flt = "task_struct"."maj_flt";
    task_ioac = "task_struct"."ioac";
    task_exec_start = "task_struct"."se.exec_start";
    task_cfs_rq = "task_struct"."se.cfs_rq";
    cfs_rq_rq = "cfs_rq"."rq";
    rq_clock = "rq"."clock";
    rq_clock_task = "rq"."clock_task";
    task_sum_exec_runtime = "task_struct"."se.sum_exec_runtime";
    task_nr_migrations = "task_struct"."se.nr_migrations";
    task_run_delay = "task_struct"."sched_info.run_delay";
    task_pcount = "task_struct"."sched_info.pcount";
    task_cpu = "task_struct"."thread_info.cpu";
    task_cpu_old = "task_struct"."cpu";
    ioac_rchar = "task_io_accounting"."rchar";
    ioac_wchar = "task_io_accounting"."wchar";
    ioac_syscr = "task_io_accounting"."syscr";
    ioac_syscw = "task_io_accounting"."syscw";
    ioac_read_bytes = "task_io_accounting"."read_bytes";
    ioac_write_bytes = "task_io_accounting"."write_bytes";
    ioac_cancelled_write_bytes = "task_io_accounting"."cancelled_write_bytes";
    signal_flags = "signal_struct"."flags";
    signal_group_exit_code = "signal_struct"."group_exit_code";
    signal_nr_threads = "signal_struct"."nr_threads";
    signal_maxrss = "signal_struct"."maxrss";
    signal_utime = "signal_struct"."utime";
    signal_stime = "signal_struct"."stime";
    signal_nvcsw = "signal_struct"."nvcsw";
    signal_nivcsw = "signal_struct"."nivcsw";
    signal_min_flt = "signal_struct"."min_flt";
    signal_maj_flt = "signal_struct"."maj_flt";
    signal_ioac = "signal_struct"."ioac";
    signal_sum_sched_runtime = "signal_struct"."sum_sched_runtime";
    mm_hiwater_rss = "mm_struct"."hiwater_rss";
    mm_total_vm = "mm_struct"."total_vm";
    mm_data_vm = "mm_struct"."data_vm";
    mm_stack_vm = "mm_struct"."stack_vm";
    mm_start_code = "mm_struct"."start_code";
    mm_end_code = "mm_struct"."end_code";
    mm_arg_start = "mm_struct"."arg_start";
    mm_arg_end = "mm_struct"."arg_end";
    mm_env_start = "mm_struct"."env_start";
    mm_env_end = "mm_struct"."env_end";
    mm_rss_stat = "mm_struct"."rss_stat";
    percpu_counter_count = "percpu_counter"."count";
    percpu_counter_counters = "percpu_counter"."counters";
    files_fdt = "files_struct"."fdt";
    fdtable_max_fds = "fdtable"."max_fds";
    fdtable_open_fds = "fdtable"."open_fds";
    cred_uid = "cred"."uid";
    pid_numbers = "pid"."numbers";
    pid_level = "pid"."level";
    upid_ns = "upid"."ns";
    css_set_cgrp_links = "css_set"."cgrp_links";
    link_cgrp = "cgrp_cset_link"."cgrp";
    link_cgrp_link = "cgrp_cset_link"."cgrp_link";
    cgroup_kn = "cgroup"."kn";
    cgroup_root = "cgroup"."root";
    cgroup_parent = "cgroup"."self.parent";
    cgroup_root_hierarchy_id = "cgroup_root"."hierarchy_id";
    kernfs_node_id = "kernfs_node"."id";
    array_pptrs = "bpf_array"."pptrs";
    binprm_interp = "linux_binprm"."interp";
    task_thread_flags = "task_struct"."thread_info.flags";
    task_thread_status = "task_struct"."thread_info.status";
    regs_di = "pt_regs"."di";
    regs_si = "pt_regs"."si";
    regs_dx = "pt_regs"."dx";
    regs_regs = "pt_regs"."regs";
    regs_orig_x0 = "pt_regs"."orig_x0";
    fdtable_fd = "fdtable"."fd";
    file_mode = "file"."f_mode";
    file_flags = "file"."f_flags";
    file_inode = "file"."f_inode";
    file_mnt = "file"."f_path.mnt";
    inode_mode = "inode"."i_mode";
    vfsmount_sb = "vfsmount"."mnt_sb";
    mount_mnt = "mount"."mnt";
    mount_id = "mount"."mnt_id";
    sb_dev = "super_block"."s_dev";
    kiocb_filp = "kiocb"."ki_filp";
    req_file = "io_kiocb"."file";
    req_opcode = "io_kiocb"."opcode";
    req_res = "io_kiocb"."cqe.res";
    sock_family = "sock"."__sk_common.skc_family";
    sock_protocol = "sock"."sk_protocol";
    sock_state = "sock"."__sk_common.skc_state";
    sock_daddr = "sock"."__sk_common.skc_daddr";
    sock_saddr = "sock"."__sk_common.skc_rcv_saddr";
    sock_v6_daddr = "sock"."__sk_common.skc_v6_daddr";
    sock_v6_saddr = "sock"."__sk_common.skc_v6_rcv_saddr";
    sock_port = "sock"."__sk_common.skc_num";
    sock_shutdown = "sock"."sk_shutdown";
    sock_flags = "sock"."__sk_common.skc_flags";
    sock_dst = "sock"."sk_dst_cache";
    socket_sk = "socket"."sk";
    dst_dev = "dst_entry"."dev";
    device_flags = "net_device"."flags";
    tcp_segs_in = "tcp_sock"."segs_in";
    tcp_segs_out = "tcp_sock"."segs_out";
    tcp_srtt_us = "tcp_sock"."srtt_us";
    tcp_total_retrans = "tcp_sock"."total_retrans";
    tcp_copied_seq = "tcp_sock"."copied_seq";
    tcp_rcv_nxt = "tcp_sock"."rcv_nxt";
    skb_cb = "sk_buff"."cb";
    skb_iif = "sk_buff"."skb_iif";
    skb_protocol = "sk_buff"."protocol";
    tcp_cb_gso_segs = "tcp_skb_cb"."tcp_gso_segs";
    flow_iif = "flowi_common"."flowic_iif";
    flow_protocol = "flowi_common"."flowic_proto";
    flow4_source_port = "flowi4"."uli.ports.sport";
    flow6_source_port = "flowi6"."uli.ports.sport";
    nexthop_scope = "fib_nh_common"."nhc_scope";
    fib6_type = "fib6_result"."fib6_type";
    regs_orig_ax = "pt_regs"."orig_ax";
    regs_syscallno = "pt_regs"."syscallno";
    request_q = "request"."q";
    request_cmd_flags = "request"."cmd_flags";
    request_data_len = "request"."__data_len";
    queue_disk = "request_queue"."disk";
    disk_major = "gendisk"."major";
    disk_first_minor = "gendisk"."first_minor";
    disk_name = "gendisk"."disk_name";
    request_bio = "request"."bio";
    request_biotail = "request"."biotail";
    request_start = "request"."start_time_ns";
    request_hctx = "request"."mq_hctx";
    request_tag = "request"."tag";
    request_internal_tag = "request"."internal_tag";
    request_end_io = "request"."end_io";
    request_flush_list = "request"."flush.list";
    request_queuelist = "request"."queuelist";
    hctx_fq = "blk_mq_hw_ctx"."fq";
    fq_queues = "blk_flush_queue"."flush_queue";
    bio_opf = "bio"."bi_opf";
    bio_next = "bio"."bi_next";
    bio_bdev = "bio"."bi_bdev";
    bio_blkg = "bio"."bi_blkg";
    bio_vecs = "bio"."bi_io_vec";
    bio_index = "bio"."bi_iter.bi_idx";
    bio_size = "bio"."bi_iter.bi_size";
    blkg_blkcg = "blkcg_gq"."blkcg";
    blkcg_cgroup = "blkcg"."css.cgroup";
    bvec_page = "bio_vec"."bv_page";
    page_compound_head = "page"."compound_head";
    page_flags = "page"."flags";
    page_mapping = "page"."mapping";
    mapping_host = "address_space"."host";
    inode_ino = "inode"."i_ino";
    inode_generation = "inode"."i_generation";
    inode_sb = "inode"."i_sb";
    inode_state = "inode"."i_state";
    task_flags = "task_struct"."flags";
}

/// Members that some kernels lack; what depends on them is null there.
#[cfg(not(target_arch = "bpf"))]
const OPTIONAL: &[&str] = &[
    // CONFIG_SCHED_INFO
    "task_run_delay",
    "task_pcount",
    // CONFIG_FAIR_GROUP_SCHED
    "task_cfs_rq",
    "cfs_rq_rq",
    // CONFIG_TASK_IO_ACCOUNTING, CONFIG_TASK_XACCT
    "task_ioac",
    "ioac_rchar",
    "ioac_wchar",
    "ioac_syscr",
    "ioac_syscw",
    "ioac_read_bytes",
    "ioac_write_bytes",
    "ioac_cancelled_write_bytes",
    "signal_ioac",
    // One of the two exists: thread_info holds the CPU since 5.16.
    "task_cpu",
    "task_cpu_old",
    // CONFIG_CGROUPS
    "task_cgroups",
    "css_set_cgrp_links",
    "link_cgrp",
    "link_cgrp_link",
    "cgroup_kn",
    "cgroup_root",
    "cgroup_parent",
    "cgroup_root_hierarchy_id",
    "kernfs_node_id",
    // Of one architecture only.
    "task_thread_flags",
    "task_thread_status",
    "regs_di",
    "regs_si",
    "regs_dx",
    "regs_regs",
    "regs_orig_x0",
    // CONFIG_IO_URING
    "req_file",
    "req_opcode",
    "req_res",
    // CONFIG_NET
    "sock_family",
    "sock_protocol",
    "sock_state",
    "sock_daddr",
    "sock_saddr",
    "sock_v6_daddr",
    "sock_v6_saddr",
    "sock_port",
    "sock_shutdown",
    "sock_flags",
    "sock_dst",
    "socket_sk",
    "dst_dev",
    "device_flags",
    "tcp_segs_in",
    "tcp_segs_out",
    "tcp_srtt_us",
    "tcp_total_retrans",
    "tcp_copied_seq",
    "tcp_rcv_nxt",
    "skb_cb",
    "skb_iif",
    "skb_protocol",
    "tcp_cb_gso_segs",
    "flow_iif",
    "flow_protocol",
    "flow4_source_port",
    "flow6_source_port",
    "nexthop_scope",
    "fib6_type",
    // Of x86 and of arm64.
    "regs_orig_ax",
    "regs_syscallno",
    // CONFIG_BLOCK
    "request_q",
    "request_cmd_flags",
    "request_data_len",
    "queue_disk",
    "disk_major",
    "disk_first_minor",
    "disk_name",
    "request_bio",
    "request_biotail",
    "request_start",
    "request_hctx",
    "request_tag",
    "request_internal_tag",
    "request_end_io",
    "request_queuelist",
    "hctx_fq",
    "fq_queues",
    "bio_opf",
    "bio_next",
    "bio_bdev",
    "bio_vecs",
    "bio_index",
    "bio_size",
    "bvec_page",
    // Until 6.5; then the requests are linked by request_queuelist.
    "request_flush_list",
    // CONFIG_BLK_CGROUP
    "bio_blkg",
    "blkg_blkcg",
    "blkcg_cgroup",
];
