//! Port channels: requests that proxies hand to copy engines and NICs.

use super::super::ir::{Channel, ChannelKind, Form, PortPut};
use super::links::{Time, micros, transfer};
use super::sizes::Turn;
use super::state::Run;

impl Run<'_, '_> {
    /// A request of a block: when the proxy has taken it.
    fn ask(&mut self, index: u32) -> Time {
        let machine = self.machine;
        let state = &mut self.blocks[index as usize];
        state.control += micros(machine.port_push_us);
        let seen = state.control + micros(machine.port_poll_us);
        let proxy = &mut self.ranks[state.rank as usize].proxy;
        let taken = seen.max(*proxy);
        *proxy = taken + micros(machine.port_busy_us);
        taken
    }

    fn stream(&mut self, rank: u32, channel: u32) -> &mut Time {
        let end = self.ends_of.end(rank, Channel { kind: ChannelKind::Port, index: channel });
        &mut self.streams[end]
    }

    /// Hands a signal to the stream of a channel at `taken`.
    fn follow(&mut self, rank: u32, channel: u32, taken: Time) {
        let peer = self.plan.ranks[rank as usize].port_channels[channel as usize];
        let machine = self.machine;
        let takes =
            if machine.host(peer) == machine.host(rank) { machine.port_signal_us } else { machine.nic_us };
        let stream = self.stream(rank, channel);
        *stream = taken.max(*stream) + micros(takes);
        let at = *stream;
        self.arrive(rank, Channel { kind: ChannelKind::Port, index: channel }, at);
    }

    pub(super) fn port_signal(&mut self, index: u32, channel: u32) -> Time {
        let taken = self.ask(index);
        let rank = self.blocks[index as usize].rank;
        self.follow(rank, channel, taken);
        self.blocks[index as usize].control
    }

    pub(super) fn flush(&mut self, index: u32, channel: u32) -> Time {
        let taken = self.ask(index);
        self.flushed(index, channel, taken)
    }

    fn flushed(&mut self, index: u32, channel: u32, taken: Time) -> Time {
        let rank = self.blocks[index as usize].rank;
        let complete = taken.max(*self.stream(rank, channel));
        let back = micros(self.machine.port_flush_us);
        let state = &mut self.blocks[index as usize];
        state.control = state.control.max(complete + back);
        state.control
    }

    pub(super) fn port(&mut self, index: u32, put: &PortPut, turn: Turn<'_>) -> Option<Time> {
        let rank = self.blocks[index as usize].rank;
        let plan = self.plan;
        let peer = plan.ranks[rank as usize].port_channels[put.channel as usize];
        let (start, end) = self.sizes.range(put.count, turn, None);
        let exist = |whose: u32, (buffer, first)| {
            self.sizes.exist(buffer, plan.ranks[whose as usize].chunks(buffer), first)
        };
        let most = exist(rank, put.source).min(exist(peer, put.target));
        let range = (start.min(most), end.min(most));
        let bytes = range.1 - range.0;
        if put.forward && bytes > 0 {
            let (_, last) = self.arrival(index, rank, put.source.1, range)?;
            let state = &mut self.blocks[index as usize];
            state.control = state.control.max(last);
        }
        let taken = self.ask(index);
        let packets = put.form == Form::Packets;
        let wire = if packets { 2 * bytes } else { bytes };
        let machine = self.machine;
        let begin = (*self.stream(rank, put.channel)).max(taken);
        let complete = if machine.host(peer) == machine.host(rank) {
            let begin = begin + micros(machine.port_put_us);
            self.links.link(rank, peer, begin, wire, false).max(begin + transfer(wire, machine.port_gbps))
        } else {
            self.links.network(rank, peer, begin, wire)
        };
        *self.stream(rank, put.channel) = complete;
        if packets && bytes > 0 {
            self.packets(rank, peer, put.target.1, range, (complete, complete));
        }
        if put.signal {
            self.follow(rank, put.channel, taken);
        }
        match put.flush {
            true => Some(self.flushed(index, put.channel, taken)),
            false => Some(self.blocks[index as usize].control),
        }
    }
}
