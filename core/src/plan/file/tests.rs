//! Files written and read back, files refused with a path, and MSCCL++'s own files where they are at hand.

use super::super::{
    Block, Buffer, Channel, ChannelKind, Collective, Form, Kind, Op, Plan, PortPut, RankPlan, Settings,
    check, oracle, samples, simulate,
};
use super::{MAX_BYTES, read, write};

#[test]
fn plans_read_back_equal() {
    for plan in samples::all() {
        let text = write(&plan).unwrap();
        assert_eq!(read(&text).unwrap(), plan, "{}", plan.name);
    }
}

/// A file with every kind of grouping that MSCCL++ writes: fused puts, several channels and semaphores in one operation.
const GROUPED: &str = r#"{"name":"grouped","collective":"test","protocol":"Simple","inplace":false,"gpus":[
{"id":0,"input_chunks":2,"output_chunks":2,"scratch_chunks":0,
 "channels":[{"channel_type":"memory","connected_to":[1,1]},{"channel_type":"port","connected_to":[1]}],
 "remote_buffers":[{"rank":1,"type":"o","access_channel_types":["memory","port"]}],
 "semaphores":[{"init_value":1},{"init_value":0}],
 "threadblocks":[{"id":0,
  "channels":[{"channel_type":"memory","channel_ids":[1,0]},{"channel_type":"port","channel_ids":[0]}],
  "remote_buffer_refs":[{"access_channel_type":"memory","remote_buffer_ids":[0]},
                        {"access_channel_type":"port","remote_buffer_ids":[0]}],
  "ops":[
   {"name":"rlxsignal","channel_ids":[0,1],"channel_type":"memory"},
   {"name":"wait","channel_ids":[1,0],"channel_type":"memory"},
   {"name":"put","channel_type":"memory","src_buff":[{"type":"i","index":0,"size":1},{"type":"i","index":1,"size":1}],
    "dst_buff":[{"buffer_id":0,"index":1,"size":1},{"buffer_id":0,"index":0,"size":1}]},
   {"name":"pws","channel_ids":[0],"channel_type":"port","src_buff":[{"type":"i","index":0,"size":1}],
    "dst_buff":[{"buffer_id":0,"index":1,"size":1}]},
   {"name":"flush","channel_ids":[0],"channel_type":"port"},
   {"name":"sem_acquire","semaphore_ids":[0,1]},
   {"name":"pipeline","iter_context":{"unit_size":1048576,"num_chunks":1},"ops":[{"name":"nop"}]}]}]},
{"id":1,"input_chunks":2,"output_chunks":2,"scratch_chunks":0,
 "channels":[{"channel_type":"memory","connected_to":[0,0]},{"channel_type":"port","connected_to":[0]}],
 "remote_buffers":[],"semaphores":[],"threadblocks":[]}]}"#;

#[test]
fn groups_are_read_apart_and_written_together() {
    let plan = read(GROUPED).unwrap();
    let ops = &plan.ranks[0].blocks[0].ops;
    assert_eq!(ops.len(), 11);
    assert_eq!(
        ops.iter().map(|operation| operation.origin).collect::<Vec<_>>(),
        [0, 0, 1, 1, 2, 2, 3, 4, 5, 5, 6]
    );
    let Op::Signal { channel, relaxed: true } = ops[0].op else { panic!("{:?}", ops[0]) };
    assert_eq!(channel.index, 1, "the block's channel 0 is the rank's channel 1");
    let text = write(&plan).unwrap();
    assert_eq!(text.matches("\"name\":\"put\"").count(), 1);
    assert_eq!(text.matches("\"semaphore_ids\":[0,1]").count(), 1);
    assert_eq!(read(&text).unwrap(), plan);
}

/// MSCCL++ has a relaxed wait; here each wait acquires.
#[test]
fn a_relaxed_wait_is_read_as_a_wait() {
    let relaxed = GROUPED.replace("{\"name\":\"wait\"", "{\"name\":\"rlxwait\"");
    assert_ne!(relaxed, GROUPED);
    assert_eq!(read(&relaxed).unwrap(), read(GROUPED).unwrap());
    assert!(!write(&read(&relaxed).unwrap()).unwrap().contains("rlxwait"));
}

/// Passes give what they bring together one origin; a file has one kind of channel in each operation.
#[test]
fn channels_of_two_kinds_are_not_written_together() {
    let mut plan = read(GROUPED).unwrap();
    let channel = |kind| Channel { kind, index: 0 };
    let [memory, port] = [ChannelKind::Memory, ChannelKind::Port].map(channel);
    let signals = [memory, port].map(|channel| Op::Signal { channel, relaxed: false });
    let waits = [memory, port].map(|channel| Op::Wait { channel });
    plan.ranks[0].blocks[0].ops = signals.into_iter().chain(waits).map(|op| op.at(0)).collect();
    let ops = |plan: &Plan| -> Vec<Op> {
        plan.ranks[0].blocks[0].ops.iter().map(|operation| operation.op.clone()).collect()
    };
    assert_eq!(ops(&read(&write(&plan).unwrap()).unwrap()), ops(&plan));
}

#[test]
fn what_is_wrong_is_named_by_its_path() {
    let cases = [
        ("\"protocol\":\"Simple\"", "\"protocol\":\"LL256\"", "plan.protocol: \"LL256\" is unknown"),
        ("\"inplace\":false", "\"inplace\":0", "plan.inplace: a boolean expected, not a number"),
        ("\"inplace\":false,", "", "plan: the key \"inplace\" is missing"),
        ("\"name\":\"grouped\"", "\"nam\":\"grouped\"", "plan: the key \"name\" is missing"),
        ("\"id\":1,\"input", "\"id\":2,\"input", "plan.gpus[1].id: 2 is not the place in the list, 1"),
        (
            "\"input_chunks\":2",
            "\"input_chunks\":-2",
            "plan.gpus[0].input_chunks: a number expected, not a negative",
        ),
        (
            "\"input_chunks\":2",
            "\"input_chunks\":4294967296",
            "plan.gpus[0].input_chunks: 4294967296 is too large",
        ),
        ("\"rank\":1", "\"rank\":2", "plan.gpus[0].remote_buffers[0].rank: rank 2 is none of the plan's 2"),
        ("[1,1]", "[1,7]", "plan.gpus[0].channels[0].connected_to[1]: rank 7 is none"),
        (
            "\"channel_type\":\"port\",\"connected",
            "\"channel_type\":\"tcp\",\"connected",
            "channels[1].channel_type: \"tcp\" is no kind",
        ),
        (
            "\"channel_ids\":[1,0]}",
            "\"channel_ids\":[1,2]}",
            "channels[0].channel_ids[1]: 2 is out of range: the rank has 2 channels",
        ),
        (
            "\"channel_ids\":[0,1],",
            "\"channel_ids\":[0,2],",
            "ops[0].channel_ids[1]: 2 is out of range: the thread block's table",
        ),
        ("\"channel_ids\":[0,1],", "\"channel_ids\":[],", "ops[0].channel_ids: at least one channel"),
        ("\"name\":\"rlxsignal\"", "\"name\":\"rlxsig\"", "ops[0].name: unknown operation \"rlxsig\""),
        ("\"name\":\"rlxsignal\"", "\"name\":\"rlxsignal\",\"why\":1", "ops[0]: unknown key \"why\""),
        ("{\"type\":\"i\",\"index\":0,\"size\":1},", "", ""),
        (
            "\"buffer_id\":0,\"index\":1,\"size\":1}",
            "\"buffer_id\":0,\"index\":1,\"size\":2}",
            "operands of 1 and 2 chunks",
        ),
        (
            "{\"type\":\"i\",\"index\":0",
            "{\"type\":\"x\",\"index\":0",
            "ops[2].src_buff[0].type: \"x\" is no buffer",
        ),
        ("\"buffer_id\":0", "\"buffer_id\":1", "ops[2].dst_buff[0].buffer_id: 1 is out of range"),
        (
            "\"name\":\"put\",\"channel_type\":\"memory\"",
            "\"name\":\"put\"",
            "ops[2].channel_type: put needs channel_type",
        ),
        (
            "\"name\":\"put\",",
            "\"name\":\"put\",\"reduce_op\":\"sum\",",
            "ops[2].reduce_op: put reduces nothing",
        ),
        (
            "\"name\":\"put\",",
            "\"name\":\"put\",\"tbg_info\":{\"tb_id\":2,\"tbg_size\":2},",
            "ops[2].tbg_info: block 2 of a group of 2",
        ),
        ("\"name\":\"pws\"", "\"name\":\"res\"", "ops[3].name: res does not work through port channels"),
        ("\"semaphore_ids\":[0,1]", "\"semaphore_ids\":[0,2]", "ops[5].semaphore_ids[1]: 2 is out of range"),
        ("\"unit_size\":1048576", "\"unit_size\":0", "ops[6].iter_context.unit_size: a loop needs"),
        (
            "[{\"name\":\"nop\"}]",
            "[{\"name\":\"pipeline\"}]",
            "ops[6].ops[0]: a pipeline cannot stand in a pipeline",
        ),
        ("\"gpus\":[", "\"gpus\":[7,", "plan.gpus[0]: an object expected, not a number"),
    ];
    for (from, to, expected) in cases {
        assert!(GROUPED.contains(from), "{from}");
        let result = read(&GROUPED.replacen(from, to, 1));
        if expected.is_empty() {
            // One source for all targets is allowed.
            assert!(result.is_ok(), "{from}: {result:?}");
            continue;
        }
        let error = result.unwrap_err().to_string();
        assert!(error.contains(expected), "{from} -> {to}: {error}");
    }
}

#[test]
fn damaged_files_are_refused_or_read_but_never_worse() {
    let text = GROUPED;
    for end in 0..text.len() {
        assert!(read(&text[..end]).is_err(), "{end}");
    }
    for at in 0..text.len() {
        for byte in [b'0', b'9', b'"', b'[', b'}', b' '] {
            let mut damaged = text.as_bytes().to_vec();
            damaged[at] = byte;
            if let Ok(plan) = read(std::str::from_utf8(&damaged).unwrap()) {
                check::check(&plan);
            }
        }
    }
    assert!(read(&" ".repeat(MAX_BYTES + 1)).unwrap_err().to_string().contains("the limit is"));
}

#[test]
fn what_the_format_has_no_word_for_is_refused() {
    let mut plan = samples::two_shot(2);
    plan.collective.kind = Kind::Reduce { root: 1 };
    assert!(write(&plan).unwrap_err().to_string().contains("a root other than rank 0"));
    let mut plan = samples::one_shot(2, true);
    samples::change(&mut plan, 0, 0, 1, |moved| moved.targets.push(super::ir::Operand::switch(0, 0)));
    assert!(write(&plan).unwrap_err().to_string().contains("has no word for"));
}

/// As MSCCL++'s tests of one operation do, which its executor runs.
#[test]
fn what_files_leave_out_is_completed() {
    let port = |source, flush| PortPut {
        channel: 0,
        source: (source, 0),
        target: (Buffer::Scratch, 0),
        count: 1,
        form: Form::Plain,
        forward: false,
        signal: true,
        flush,
    };
    let plan = |puts: Vec<Op>| {
        let ops = (0..).zip(puts).map(|(origin, op)| op.at(origin)).collect();
        let sender = RankPlan {
            input_chunks: 1,
            scratch_chunks: 1,
            port_channels: vec![1, 1, 2],
            blocks: vec![Block::new(ops)],
            ..RankPlan::default()
        };
        let other = RankPlan { input_chunks: 1, scratch_chunks: 1, ..RankPlan::default() };
        let receiver = RankPlan { port_channels: vec![0], ..other.clone() };
        Plan {
            name: "puts".into(),
            collective: Collective { kind: Kind::Custom("puts".into()), in_place: false },
            settings: Settings::default(),
            ranks: vec![sender, receiver, other],
        }
    };
    let put = |source, flush| Op::Port(Box::new(port(source, flush)));
    let flush = Op::Flush { channel: 0 };
    for (puts, flushes) in [
        (vec![put(Buffer::Input, false)], true),
        (vec![put(Buffer::Input, true)], false),
        (vec![put(Buffer::Input, false), flush.clone()], false),
        (vec![put(Buffer::Input, true), put(Buffer::Input, false)], true),
        (vec![put(Buffer::Input, false), put(Buffer::Scratch, true)], false),
        (vec![put(Buffer::Scratch, false)], false),
    ] {
        let given = plan(puts);
        let seen = read(&write(&given).unwrap()).unwrap();
        let mut expected = given;
        expected.ranks[1].port_channels = vec![0, 0];
        expected.ranks[2].port_channels = vec![0];
        let ops = &mut expected.ranks[0].blocks[0].ops;
        ops.extend(flushes.then(|| flush.clone().at(0)));
        assert_eq!(seen, expected);
        assert_eq!(read(&write(&seen).unwrap()).unwrap(), seen);
    }
}

/// Reads, checks and runs the plans of the folder `AQUEDUCT_TEST_PLANS`. What MSCCL++ wrote only to look at one operation waits
/// for packets or a peer that no other operation brings, and so has findings.
#[test]
#[ignore = "needs the folder of MSCCL++'s plans in AQUEDUCT_TEST_PLANS"]
fn plans_of_mscclpp() {
    let folder = std::env::var("AQUEDUCT_TEST_PLANS").expect("AQUEDUCT_TEST_PLANS names the folder");
    let fragments = ["unit_read_put_packet_test.json", "unit_reduce_packets_test.json"];
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let plan = read(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(read(&write(&plan).unwrap()).unwrap(), plan, "{name}");
        let findings = check::check(&plan);
        assert_eq!(findings.is_empty(), !fragments.contains(&&*name), "{name}: {findings:?}");
        if findings.is_empty() {
            (0..5).for_each(|seed| results(&plan, &name, seed));
        }
        files += 1;
    }
    assert!(files > 20, "{files} plans");
}

fn results(plan: &Plan, name: &str, seed: u64) {
    let input = |rank: u64| (0..1536).map(|element| element * 64 + rank).collect();
    let inputs: Vec<Vec<u64>> = (0..plan.ranks.len() as u64).map(input).collect();
    let calls = [inputs.clone(), inputs.clone(), inputs.clone()];
    let outputs = simulate::run(plan, &calls, simulate::Config { seed, reduction: None }).unwrap();
    let expected = oracle::outputs(&plan.collective.kind, &inputs, u64::wrapping_add);
    for output in outputs {
        for (rank, expected) in expected.iter().enumerate() {
            assert!(expected.as_ref().is_none_or(|expected| *expected == output[rank]), "{name} rank {rank}");
        }
    }
}

/// A file would turn it into the collective of that name, whose result it does not have.
#[test]
fn custom_collectives_have_names_of_their_own() {
    let mut plan = samples::all().remove(0);
    plan.collective.kind = Kind::Custom("mine".into());
    assert_eq!(read(&write(&plan).unwrap()).unwrap(), plan);
    for name in ["allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "sendrecv"] {
        plan.collective.kind = Kind::Custom(name.into());
        let error = write(&plan).unwrap_err().to_string();
        assert!(error.contains("a name of its own"), "{name}: {error}");
    }
}
