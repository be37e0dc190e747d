//! Fusion of port puts with what follows them, and of control operations into lists.

use super::file;
use super::ir::{Channel, ChannelKind, Op, Operation, PortPut};
use super::item::Entry;

/// A put with the signal or flush behind it.
pub(super) fn joined(put: &PortPut, next: &Op) -> Option<PortPut> {
    let channel = Channel { kind: ChannelKind::Port, index: put.channel };
    match *next {
        Op::Signal { channel: other, .. } if other == channel && !put.signal && !put.flush => {
            Some(PortPut { signal: true, ..*put })
        }
        // Plan files have a name for this only behind a signal.
        Op::Flush { channel: other } if other == put.channel && put.signal && !put.flush => {
            Some(PortPut { flush: true, ..*put })
        }
        _ => None,
    }
}

/// Whether a put (the first) may take over a signal or flush (the last): no other operation of its channel stands between,
/// nothing that the signal should tell of is learned there, and a flush does not end what could go on beside it.
pub(super) fn close(entries: &[Entry]) -> bool {
    let [first, between @ .., last] = entries else { return false };
    let Op::Port(put) = &first.operation.op else { return false };
    let flush = matches!(last.operation.op, Op::Flush { .. });
    let mine = |channel: &Channel| channel.kind == ChannelKind::Port && channel.index == put.channel;
    between.iter().all(|entry| match &entry.operation.op {
        Op::Sync => true,
        Op::Move(_) => !flush,
        Op::Signal { channel, .. } => !flush && !mine(channel),
        Op::Port(other) => !flush && other.channel != put.channel && !other.flush && !other.forward,
        Op::Release { .. } => !flush,
        _ => false,
    })
}

/// Makes neighbours of one kind a list, which a file writes as one operation: gives them one origin.
pub(super) fn listed(ops: &mut [Operation]) {
    let mut start = 0;
    for index in 1..ops.len() {
        if ops[start..index].iter().all(|earlier| lists(&earlier.op, &ops[index].op)) {
            ops[index].origin = ops[start].origin;
        } else {
            start = index;
        }
    }
}

fn lists(a: &Op, b: &Op) -> bool {
    let twice = match (a, b) {
        (Op::Signal { channel: a, .. }, Op::Signal { channel: b, .. })
        | (Op::Wait { channel: a, .. }, Op::Wait { channel: b, .. }) => a == b,
        (Op::Flush { channel: a }, Op::Flush { channel: b }) => a == b,
        (Op::Acquire { semaphore: a }, Op::Acquire { semaphore: b })
        | (Op::Release { semaphore: a }, Op::Release { semaphore: b }) => a == b,
        (Op::Port(a), Op::Port(b)) => a.channel == b.channel,
        _ => false,
    };
    !twice && file::listed(a, b)
}
