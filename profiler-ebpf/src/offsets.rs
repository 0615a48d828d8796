//! Members of kernel structs that the programs read.
//!
//! The profiler looks them up in the BTF of the running kernel and sets [`Offsets`] as a
//! read-only global before load; the verifier then folds the loads to constants. Values that depend
//! on an optional member are null on kernels without it.

/// Offset of a member that the running kernel does not have.
pub const MISSING: u32 = u32::MAX;

/// Declares the members as `<struct>_<member> = "struct"."path";`, optional ones in groups with the
/// condition under which a kernel has them.
macro_rules! offsets {
    (
        required { $($field:ident = $struct:literal . $path:literal;)* }
        $(optional $condition:literal {
            $($optional:ident = $optional_struct:literal . $optional_path:literal;)*
        })*
    ) => {
        shared! {
            /// Byte offsets of members.
            pub struct Offsets {
                $(#[doc = concat!("`", $struct, ".", $path, "`")] pub $field: u32,)*
                $($(
                    #[doc = concat!("`", $optional_struct, ".", $optional_path, "`: ", $condition)]
                    pub $optional: u32,
                )*)*
            }
        }

        impl Offsets {
            /// No member found.
            pub const NONE: Self = Self {
                $($field: MISSING,)*
                $($($optional: MISSING,)*)*
            };

            /// Looks up each member by its struct and path.
            #[cfg(not(target_arch = "bpf"))]
            pub fn resolve(mut lookup: impl FnMut(&str, &str) -> Option<u32>) -> Self {
                Self {
                    $($field: lookup($struct, $path).unwrap_or(MISSING),)*
                    $($($optional: lookup($optional_struct, $optional_path).unwrap_or(MISSING),)*)*
                }
            }

            /// Required members that were not found, as `struct.path`.
            #[cfg(not(target_arch = "bpf"))]
            pub fn missing(&self) -> Vec<&'static str> {
                let required = [$((self.$field, concat!($struct, ".", $path)),)*];
                let missing = required.into_iter().filter(|(offset, _)| *offset == MISSING);
                missing.map(|(_, member)| member).collect()
            }
        }
    };
}

offsets! {
    required {
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
        task_utime = "task_struct"."utime";
        task_stime = "task_struct"."stime";
        task_nvcsw = "task_struct"."nvcsw";
        task_nivcsw = "task_struct"."nivcsw";
        task_min_flt = "task_struct"."min_flt";
        task_maj_flt = "task_struct"."maj_flt";
        task_exec_start = "task_struct"."se.exec_start";
        rq_clock = "rq"."clock";
        rq_clock_task = "rq"."clock_task";
        task_sum_exec_runtime = "task_struct"."se.sum_exec_runtime";
        task_nr_migrations = "task_struct"."se.nr_migrations";
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
        cred_euid = "cred"."euid";
        cred_suid = "cred"."suid";
        cred_gid = "cred"."gid";
        cred_egid = "cred"."egid";
        cred_sgid = "cred"."sgid";
        pid_numbers = "pid"."numbers";
        pid_level = "pid"."level";
        upid_ns = "upid"."ns";
        array_pptrs = "bpf_array"."pptrs";
        binprm_interp = "linux_binprm"."interp";
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
    optional "Linux whose memory says whether it is dumpable" {
        mm_flags = "mm_struct"."flags";
    }
    optional "CONFIG_SCHED_INFO" {
        task_run_delay = "task_struct"."sched_info.run_delay";
        task_pcount = "task_struct"."sched_info.pcount";
        task_last_arrival = "task_struct"."sched_info.last_arrival";
        task_last_queued = "task_struct"."sched_info.last_queued";
    }
    optional "Linux 6.12 or later" {
        task_sched_delayed = "task_struct"."se.sched_delayed";
    }
    optional "CONFIG_FAIR_GROUP_SCHED" {
        task_cfs_rq = "task_struct"."se.cfs_rq";
        cfs_rq_rq = "cfs_rq"."rq";
    }
    optional "Linux whose iterators can be limited to a process" {
        iter_task = "bpf_iter_aux_info"."task";
        rq_curr = "rq"."curr";
        rq_nr_running = "rq"."nr_running";
    }
    optional "CONFIG_TASK_XACCT and CONFIG_TASK_IO_ACCOUNTING" {
        task_ioac = "task_struct"."ioac";
        ioac_rchar = "task_io_accounting"."rchar";
        ioac_wchar = "task_io_accounting"."wchar";
        ioac_syscr = "task_io_accounting"."syscr";
        ioac_syscw = "task_io_accounting"."syscw";
        ioac_read_bytes = "task_io_accounting"."read_bytes";
        ioac_write_bytes = "task_io_accounting"."write_bytes";
        ioac_cancelled_write_bytes = "task_io_accounting"."cancelled_write_bytes";
        signal_ioac = "signal_struct"."ioac";
    }
    optional "Linux 5.16 or later" {
        task_cpu = "task_struct"."thread_info.cpu";
    }
    optional "Linux before 5.16" {
        task_cpu_old = "task_struct"."cpu";
    }
    optional "CONFIG_CGROUPS" {
        task_cgroups = "task_struct"."cgroups";
        css_set_cgrp_links = "css_set"."cgrp_links";
        link_cgrp = "cgrp_cset_link"."cgrp";
        link_cgrp_link = "cgrp_cset_link"."cgrp_link";
        cgroup_kn = "cgroup"."kn";
        cgroup_root = "cgroup"."root";
        cgroup_parent = "cgroup"."self.parent";
        cgroup_root_hierarchy_id = "cgroup_root"."hierarchy_id";
        kernfs_node_id = "kernfs_node"."id";
    }
    optional "x86-64" {
        task_thread_status = "task_struct"."thread_info.status";
        regs_di = "pt_regs"."di";
        regs_si = "pt_regs"."si";
        regs_dx = "pt_regs"."dx";
        regs_orig_ax = "pt_regs"."orig_ax";
    }
    optional "arm64" {
        task_thread_flags = "task_struct"."thread_info.flags";
        regs_regs = "pt_regs"."regs";
        regs_orig_x0 = "pt_regs"."orig_x0";
        regs_syscallno = "pt_regs"."syscallno";
    }
    optional "CONFIG_IO_URING" {
        req_file = "io_kiocb"."file";
        req_opcode = "io_kiocb"."opcode";
        req_res = "io_kiocb"."cqe.res";
    }
    optional "Linux before 5.18" {
        req_user_data = "io_kiocb"."user_data";
    }
    optional "CONFIG_NET" {
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
    }
    optional "CONFIG_BLOCK" {
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
        request_queuelist = "request"."queuelist";
        hctx_fq = "blk_mq_hw_ctx"."fq";
        fq_queues = "blk_flush_queue"."flush_queue";
        bio_opf = "bio"."bi_opf";
        bio_next = "bio"."bi_next";
        bio_vecs = "bio"."bi_io_vec";
        bio_index = "bio"."bi_iter.bi_idx";
        bio_size = "bio"."bi_iter.bi_size";
        bvec_page = "bio_vec"."bv_page";
    }
    optional "Linux before 6.5" {
        request_flush_list = "request"."flush.list";
    }
    optional "CONFIG_BLK_CGROUP" {
        bio_blkg = "bio"."bi_blkg";
        blkg_blkcg = "blkcg_gq"."blkcg";
        blkcg_cgroup = "blkcg"."css.cgroup";
    }
}
