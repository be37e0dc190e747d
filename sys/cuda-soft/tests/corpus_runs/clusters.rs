//! Clusters, mbarrier objects and asynchronous copies, in short texts.

use super::rig::Corpus;
use super::texts::results_of;

#[test]
fn an_mbarrier_releases_waiters_when_all_have_arrived() {
    // Warps arrive once each; thread 0 arrives last, after a long loop, for two of the expected arrivals.
    let items = ".shared .align 8 .b64 bar; .shared .b32 word;";
    let body = "setp.ne.u32 %p1, %tid, 0; @%p1 bra READY; mbarrier.init.shared.b64 [bar], 65; READY: bar.sync 0;\n\
         @%p1 bra ARRIVE; mov.u32 %r1, 20000; LOOP: sub.u32 %r1, %r1, 1; setp.ne.u32 %p2, %r1, 0; @%p2 bra LOOP;\n\
         st.shared.u32 [word], 77; mbarrier.arrive.release.cta.shared::cta.b64 %d1, [bar], 2; bra WAIT;\n\
         ARRIVE: mbarrier.arrive.shared.b64 %d1, [bar];\n\
         WAIT: mbarrier.try_wait.shared::cta.b64 %p3, [bar], %d1, 100; @!%p3 bra WAIT;\n\
         ld.shared.u32 %r2, [word]; cvt.u64.u32 %res, %r2;\n\
         mbarrier.pending_count.b64 %r3, %d1; setp.eq.u32 %p4, %r3, 0; @%p4 mov.u64 %res, 1;\n\
         mbarrier.test_wait.parity.shared.b64 %p5, [bar], 0; @!%p5 mov.u64 %res, 2;\n\
         mbarrier.test_wait.parity.shared.b64 %p5, [bar], 1; @%p5 mov.u64 %res, 3;";
    assert_eq!(results_of(items, body, 64), [77; 64]);
}

#[test]
fn copies_complete_at_their_mbarrier() {
    let items = ".global .align 16 .b32 source[8] = {10, 11, 12, 13, 14, 15, 16, 17}; .global .align 16 .b32 target[8];\n\
         .shared .align 16 .b32 buffer[8]; .shared .align 8 .b64 bar;";
    let body = "setp.ne.u32 %p1, %tid, 0; @%p1 bra READY; mbarrier.init.shared::cta.b64 [bar], 1;\n\
         fence.mbarrier_init.release.cluster; mov.u64 %d3, source; mov.u32 %r1, buffer; mov.u32 %r2, bar;\n\
         mbarrier.arrive.expect_tx.shared.b64 %d1, [bar], 32;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d3], 32, [%r2];\n\
         READY: bar.sync 0; mov.u32 %r2, bar;\n\
         WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2], 0; @!%p3 bra WAIT;\n\
         mov.u32 %r1, buffer; mad.lo.u32 %r3, %tid, 4, %r1; ld.shared.u32 %r4, [%r3]; add.u32 %r4, %r4, 100;\n\
         st.shared.u32 [%r3], %r4; fence.proxy.async.shared::cta; bar.sync 0; @%p1 bra DONE;\n\
         mov.u64 %d4, target; cp.async.bulk.global.shared::cta.bulk_group [%d4], [%r1], 32;\n\
         cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; DONE: bar.sync 0;\n\
         mov.u64 %d4, target; mad.wide.u32 %d4, %tid, 4, %d4; ld.global.u32 %r5, [%d4]; cvt.u64.u32 %res, %r5;";
    assert_eq!(results_of(items, body, 8), (110..118).collect::<Vec<u64>>());
    // Groups of small copies, and an arrival that follows them.
    let body = "setp.ne.u32 %p1, %tid, 0; @!%p1 mbarrier.init.shared.b64 [bar], 8; bar.sync 0; mov.u64 %d3, source;\n\
         mad.wide.u32 %d3, %tid, 4, %d3; mov.u32 %r1, buffer; mad.lo.u32 %r1, %tid, 4, %r1;\n\
         cp.async.ca.shared.global [%r1], [%d3], 4; cp.async.commit_group; cp.async.wait_group 0;\n\
         cp.async.mbarrier.arrive.noinc.shared.b64 [bar]; cp.async.mbarrier.arrive.shared.b64 [bar];\n\
         WAIT: mbarrier.test_wait.parity.shared.b64 %p3, [bar], 0; @!%p3 bra WAIT;\n\
         xor.b32 %r2, %tid, 7; mov.u32 %r1, buffer; mad.lo.u32 %r1, %r2, 4, %r1; ld.shared.u32 %r3, [%r1];\n\
         cvt.u64.u32 %res, %r3;";
    assert_eq!(results_of(items, body, 8), (10..18).rev().collect::<Vec<u64>>());
}

/// A kernel in which each block stores to the next block of its cluster and reads what came.
const RING: &str = ".version 9.0\n.target sm_90\n.address_size 64
.shared .align 8 .b64 inbox; .shared .align 8 .b64 second;
.visible .entry k(.param .u64 out) .explicitcluster .reqnctapercluster 4, 1, 1 {
    .reg .b32 %r<16>; .reg .b64 %d<16>; .reg .pred %p<4>;
    mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %cluster_nctarank; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %clusterid.x;
    mov.u32 %r5, %tid.x; setp.ne.u32 %p1, %r5, 0;
    barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
    @%p1 bra SENT;
    add.u32 %r6, %r1, 1; rem.u32 %r6, %r6, %r2;
    mov.u32 %r7, inbox; mapa.shared::cluster.u32 %r8, %r7, %r6;
    cvt.u64.u32 %d1, %r3; st.shared::cluster.u64 [%r8], %d1;
    getctarank.shared::cluster.u32 %r9, %r8;
    mov.u64 %d2, second; cvta.shared.u64 %d2, %d2; mapa.u64 %d3, %d2, %r6;
    mad.lo.u32 %r10, %r4, 100, %r9; cvt.u64.u32 %d4, %r10; st.u64 [%d3], %d4;
SENT:
    barrier.cluster.arrive; barrier.cluster.wait;
    @%p1 bra DONE;
    ld.shared.u64 %d5, [inbox]; ld.shared.u64 %d6, [second]; mad.lo.u64 %d6, %d6, 1000, %d5;
    ld.param.u64 %d7, [out]; mad.wide.u32 %d8, %r3, 8, %d7; st.global.u64 [%d8], %d6;
DONE:
    ret;
}";

#[test]
fn blocks_of_a_cluster_write_to_each_other_and_meet() {
    let corpus = Corpus::text(RING, "ring");
    let out = corpus.buffer(&[u64::MAX; 64]);
    corpus.run("k", 64, 40, 0, &[out.address]);
    let expected: Vec<u64> = (0..64)
        .map(|block| {
            let (cluster, rank) = (block / 4, block % 4);
            (cluster * 100 + rank) * 1000 + cluster * 4 + (rank + 3) % 4
        })
        .collect();
    assert_eq!(corpus.read(out), expected);
}

#[test]
fn cooperative_groups_have_reserved_shared_memory_of_zeros() {
    let items = ".extern .shared .align 16 .b8 dynamic[]; .shared .b32 own;";
    let body = "st.shared.u32 [own], 5; mov.u32 %r1, %reserved_smem_offset_1; mad.lo.u32 %r1, %tid, 4, %r1;\n\
         ld.shared.u32 %r2, [%r1]; st.shared.u32 [%r1], %tid; mov.u32 %r3, %reserved_smem_offset_begin;\n\
         mov.u32 %r4, %reserved_smem_offset_end; sub.u32 %r4, %r4, %r3; bar.sync 0; ld.shared.u32 %r5, [own];\n\
         ld.shared.u32 %r6, [%r1]; mad.lo.u32 %r5, %r5, 100, %r2; mad.lo.u32 %r5, %r5, 100, %r6; cvt.u64.u32 %res, %r5;\n\
         cvt.u64.u32 %d1, %r4; shl.b64 %d1, %d1, 32; or.b64 %res, %res, %d1;";
    let expected: Vec<u64> = (0..72).map(|t| 1024 << 32 | (50000 + t)).collect();
    assert_eq!(results_of(items, body, 72), expected);
}
