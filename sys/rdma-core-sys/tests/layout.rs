//! Compares sizes and offsets with those of the C compiler. Needs a C compiler and libibverbs's header;
//! `ci/bindings.sh` provides both and runs this test.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::process::Command;

use rdma_core_sys::*;

/// `(C expression, value in Rust)` for the size of each struct and the offset of each field that is used.
macro_rules! fields {
    ($($kind:ident $name:ident { $($field:ident),* $(,)? })*) => {
        vec![$(
            (concat!("sizeof(", stringify!($kind), " ", stringify!($name), ")").to_owned(), size_of::<$name>()),
            $((
                concat!("offsetof(", stringify!($kind), " ", stringify!($name), ", ", stringify!($field), ")").to_owned(),
                offset_of!($name, $field),
            ),)*
        )*]
    };
}

fn expected() -> Vec<(String, usize)> {
    fields! {
        struct ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        struct ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        struct ibv_context_ops { poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv }
        struct verbs_context { query_port, advise_mr, query_rt_values, create_cq_ex, query_device_ex, create_qp_ex, sz, context }
        struct ibv_device_attr { fw_ver, max_mr_size, max_qp_wr, max_cqe, max_qp_rd_atom, atomic_cap, phys_port_cnt }
        struct ibv_device_attr_ex { orig_attr, comp_mask, pci_atomic_caps, phys_port_cnt_ex }
        struct ibv_port_attr { state, active_mtu, gid_tbl_len, max_msg_sz, pkey_tbl_len, lid, link_layer, flags, port_cap_flags2 }
        union ibv_gid { raw, global }
        struct ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        struct ibv_pd { context, handle }
        struct ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        struct ibv_comp_channel { context, fd, refcnt }
        struct ibv_cq { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed }
        struct ibv_wc { wr_id, status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits }
        struct ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond, events_completed }
        struct ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        struct ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        struct ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr, pkey_index,
            max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, rate_limit
        }
        struct ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        struct ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        struct ibv_sge { addr, length, lkey }
        struct ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, wr, qp_type }
        struct ibv_recv_wr { wr_id, next, sg_list, num_sge }
        struct ibv_async_event { element, event_type }
    }
}

/// Members of unnamed unions, which have other names in Rust, and constants.
fn more() -> Vec<(String, usize)> {
    let send = offset_of!(ibv_send_wr, wr);
    let pair = |text: &str, value: usize| (text.to_owned(), value);
    vec![
        pair("offsetof(struct ibv_send_wr, imm_data)", offset_of!(ibv_send_wr, __bindgen_anon_1)),
        pair(
            "offsetof(struct ibv_send_wr, wr.rdma.rkey)",
            send + offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_1, rkey),
        ),
        pair(
            "offsetof(struct ibv_send_wr, wr.atomic.rkey)",
            send + offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_2, rkey),
        ),
        pair(
            "offsetof(struct ibv_send_wr, wr.atomic.swap)",
            send + offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_2, swap),
        ),
        pair("offsetof(struct ibv_wc, imm_data)", offset_of!(ibv_wc, __bindgen_anon_1)),
        pair("IBV_ACCESS_OPTIONAL_RANGE", IBV_ACCESS_OPTIONAL_RANGE as usize),
        pair("IBV_ACCESS_RELAXED_ORDERING", ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0 as usize),
        pair("IBV_QPS_RTS", ibv_qp_state::IBV_QPS_RTS.0 as usize),
        pair("IBV_WC_RECV_RDMA_WITH_IMM", ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM.0 as usize),
        pair("IBV_EVENT_DEVICE_FATAL", ibv_event_type::IBV_EVENT_DEVICE_FATAL.0 as usize),
    ]
}

#[test]
#[ignore = "needs a C compiler and libibverbs-dev"]
fn the_c_compiler_agrees() {
    let mut all = expected();
    all.extend(more());
    assert!(all.len() > 150);
    let mut program = String::from("#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {\n");
    for (text, _) in &all {
        writeln!(program, "    printf(\"%zu\\n\", (size_t)({text}));").unwrap();
    }
    program.push_str("    return 0;\n}\n");
    let folder = std::env::temp_dir().join(format!("aqueduct-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&source, program).unwrap();
    let mut compile = Command::new("cc");
    if let Some(include) = std::env::var_os("VERBS_INCLUDE") {
        compile.arg("-I").arg(include);
    }
    assert!(compile.arg(&source).arg("-o").arg(&binary).status().expect("a C compiler").success());
    let output = Command::new(&binary).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let found: Vec<usize> =
        String::from_utf8(output.stdout).unwrap().lines().map(|n| n.parse().unwrap()).collect();
    assert_eq!(found.len(), all.len());
    for ((text, here), c) in all.iter().zip(found) {
        assert_eq!(*here, c, "{text}");
    }
}
