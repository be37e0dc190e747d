//! A whole job in simulated time: its network, its processes, and how each of them shrinks its communicator.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::process::{Communicator, Event, Name, Process, Word};
use super::random::Random;
use super::{DEADLINE, PEER_TIMEOUT, TICK, Time};
use crate::group::membership::agreement::{Membership, Verdict};
use crate::group::membership::message::Envelope;
use crate::group::membership::quorum::Ranks;

pub(super) struct Job {
    pub(super) seed: u64,
    pub(super) random: Random,
    pub(super) now: Time,
    pub(super) order: u64,
    pub(super) queue: BinaryHeap<Reverse<(Time, u64)>>,
    pub(super) events: BTreeMap<u64, Event>,
    pub(super) hosts: Vec<u32>,
    pub(super) processes: Vec<Process>,
    /// When the path from one rank to another broke.
    pub(super) broken: BTreeMap<(u32, u32), Time>,
    /// When the last word from one rank to another arrives: they stay in order.
    pub(super) last: BTreeMap<(u32, u32), Time>,
    pub(super) slowest: Time,
    /// `shrink` has returned a communicator to a process.
    pub(super) made_one: bool,
}

impl Job {
    pub(super) fn new(seed: u64, size: u32) -> Self {
        let mut random = Random(seed);
        let hosts: Vec<u32> = {
            let count = 1 + random.below(u64::from(size));
            (0..size).map(|_| random.below(count) as u32).collect()
        };
        let slowest = [5, 40, 300][random.below(3) as usize];
        let everyone: Ranks = (0..size).collect();
        let process = |me| Process {
            alive: true,
            left: false,
            communicators: vec![Communicator {
                name: vec![(0, everyone.clone())],
                ranks: (0..size).collect(),
                membership: Membership::new(me, hosts.clone(), false),
                calling: None,
                making: None,
                ready: BTreeMap::new(),
                failed: false,
            }],
            current: 0,
            returned: Vec::new(),
            cut: Ranks::new(),
            call_at: None,
        };
        let processes = (0..size).map(process).collect();
        let mut job = Self {
            seed,
            random,
            now: 0,
            order: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            hosts: hosts.clone(),
            processes,
            broken: BTreeMap::new(),
            last: BTreeMap::new(),
            slowest,
            made_one: false,
        };
        for rank in 0..size {
            let at = job.random.below(TICK);
            job.at(at, Event::Tick(rank));
        }
        job
    }

    pub(super) fn size(&self) -> u32 {
        self.processes.len() as u32
    }

    pub(super) fn at(&mut self, time: Time, event: Event) {
        self.order += 1;
        self.queue.push(Reverse((time, self.order)));
        self.events.insert(self.order, event);
    }

    pub(super) fn path(&self, from: u32, to: u32) -> bool {
        !self.broken.contains_key(&(from, to))
    }

    pub(super) fn is_there(&self, rank: u32) -> bool {
        let process = &self.processes[rank as usize];
        process.alive && !process.left
    }

    fn say(&mut self, from: u32, to: u32, name: &Name, word: Word) {
        if self.processes[from as usize].cut.contains(&to) && !matches!(word, Word::Cut) {
            return;
        }
        if !self.path(from, to) {
            return;
        }
        let slowest = self.slowest;
        let arrives = self.now + 1 + self.random.below(slowest);
        let arrives = arrives.max(self.last.get(&(from, to)).copied().unwrap_or(0));
        self.last.insert((from, to), arrives);
        self.at(arrives, Event::Deliver { from, to, name: name.clone(), word });
    }

    /// Lets the next event before `end` happen. False if there is none.
    pub(super) fn step(&mut self, end: Time) -> bool {
        let Some(&Reverse((time, number))) = self.queue.peek().filter(|next| next.0.0 <= end) else {
            return false;
        };
        self.queue.pop();
        self.now = time;
        let event = self.events.remove(&number).expect("it was put there");
        self.happen(event);
        true
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Tick(rank) => {
                if self.is_there(rank) {
                    self.tick(rank);
                    let next = self.now + TICK;
                    self.at(next, Event::Tick(rank));
                }
            }
            Event::Deliver { from, to, name, word } => {
                // A broken path also loses the messages in flight.
                if self.is_there(to) && self.path(from, to) {
                    self.deliver(from, to, &name, word);
                }
            }
            Event::Break { from, to } => {
                let now = self.now;
                self.broken.entry((from, to)).or_insert(now);
                let slack = self.random.below(250);
                self.at(now + PEER_TIMEOUT + slack, Event::Silent { at: to, of: from });
            }
            Event::Silent { at, of } => self.give_up(at, of, false),
            Event::Die(rank) => self.end(rank, Word::End, false),
            Event::Leave(rank) => self.end(rank, Word::Bye, true),
        }
    }

    /// A process ends, of its own will or not.
    fn end(&mut self, rank: u32, word: Word, left: bool) {
        if !self.is_there(rank) {
            return;
        }
        let names: Vec<Name> =
            self.processes[rank as usize].communicators.iter().map(|one| one.name.clone()).collect();
        for (number, name) in names.iter().enumerate() {
            if left {
                self.processes[rank as usize].communicators[number].membership.last_words();
                self.flush(rank, number);
            }
            for peer in (0..self.size()).filter(|peer| *peer != rank) {
                self.say(rank, peer, name, word.clone());
            }
        }
        let process = &mut self.processes[rank as usize];
        (process.alive, process.left) = (left, left);
        for peer in (0..self.size()).filter(|peer| *peer != rank) {
            if !self.path(rank, peer) {
                let slack = self.random.below(250);
                self.at(self.now + PEER_TIMEOUT + slack, Event::Silent { at: peer, of: rank });
            }
        }
    }

    /// `at` finds that there is no path from `of` any more, and speaks to it no more.
    fn give_up(&mut self, at: u32, of: u32, died: bool) {
        if !self.is_there(at) || self.processes[at as usize].cut.contains(&of) {
            return;
        }
        let name = self.processes[at as usize].communicators[0].name.clone();
        self.say(at, of, &name, Word::Cut);
        self.processes[at as usize].cut.insert(of);
        if !self.path(at, of) {
            let slack = self.random.below(250);
            self.at(self.now + PEER_TIMEOUT + slack, Event::Silent { at: of, of: at });
        }
        for number in 0..self.processes[at as usize].communicators.len() {
            let here = &mut self.processes[at as usize].communicators[number];
            if let Some(peer) = here.ranks.iter().position(|rank| *rank == of) {
                here.membership.lost(peer as u32, died);
                self.flush(at, number);
            }
        }
        self.want_to_call(at);
    }

    fn want_to_call(&mut self, rank: u32) {
        let later = self.now + self.random.below(900);
        let process = &mut self.processes[rank as usize];
        process.call_at.get_or_insert(later);
    }

    fn deliver(&mut self, from: u32, to: u32, name: &Name, word: Word) {
        match word {
            Word::End if self.processes[to as usize].cut.contains(&from) => {}
            Word::End => self.give_up(to, from, self.hosts[from as usize] == self.hosts[to as usize]),
            Word::Cut => self.give_up(to, from, false),
            _ if self.processes[to as usize].cut.contains(&from) => {}
            Word::Bye | Word::Ready(_) | Word::Membership(_) => {
                let communicators = &mut self.processes[to as usize].communicators;
                let Some(number) = communicators.iter().position(|one| one.name == *name) else { return };
                let here = &mut communicators[number];
                let peer =
                    here.ranks.iter().position(|rank| *rank == from).expect("it is one of them") as u32;
                match word {
                    Word::Bye => here.membership.left(peer),
                    Word::Ready(generation) => drop(here.ready.entry(generation).or_default().insert(peer)),
                    Word::Membership(ref envelope) => {
                        let size = here.ranks.len() as u32;
                        let decoded = Envelope::decode(&envelope.encode(), size).expect("it is well formed");
                        here.membership.receive(peer, decoded);
                    }
                    Word::End | Word::Cut => {}
                }
                self.flush(to, number);
                if matches!(word, Word::Bye) {
                    self.want_to_call(to);
                }
            }
        }
    }

    fn flush(&mut self, rank: u32, number: usize) {
        let here = &mut self.processes[rank as usize].communicators[number];
        let (name, ranks) = (here.name.clone(), here.ranks.clone());
        for (to, envelope) in here.membership.take_outbox() {
            self.say(rank, ranks[to as usize], &name, Word::Membership(envelope));
        }
    }

    fn tick(&mut self, rank: u32) {
        let number = self.processes[rank as usize].current;
        let now = self.now;
        let process = &mut self.processes[rank as usize];
        let here = &mut process.communicators[number];
        if here.failed {
            return;
        }
        if here.calling.is_none() && process.call_at.is_some_and(|at| at <= now) {
            process.call_at = None;
            here.calling = Some((now, now + DEADLINE));
            here.membership.call(Ranks::new());
        }
        if here.calling.is_some() {
            self.advance(rank, number);
        }
    }

    /// One turn of the loop in `shrink`.
    fn advance(&mut self, rank: u32, number: usize) {
        let now = self.now;
        let here = &mut self.processes[rank as usize].communicators[number];
        let (began, until) = here.calling.expect("it is called");
        here.membership.tick();
        if now > until {
            here.failed = true;
            here.calling = None;
            here.membership.withdraw();
            return self.flush(rank, number);
        }
        if let Some((generation, next)) = here.making {
            let members = here.membership.take();
            let all = members
                .iter()
                .all(|member| here.ready.get(&generation).is_some_and(|ready| ready.contains(member)));
            let broken = !here.membership.reaches_all();
            if all && here.membership.complete(generation) {
                self.flush(rank, number);
                return self.go_on(rank, number, next, began);
            }
            if broken || all || here.membership.is_superseded(generation) {
                here.making = None;
                here.membership.call(Ranks::new());
                // It is kept: another member may have completed it.
                here.ready.insert(u64::MAX, Ranks::from([next as u32]));
            }
            return self.flush(rank, number);
        }
        match here.membership.verdict() {
            Verdict::Waiting(_) => {}
            Verdict::Agreed { generation, members } => {
                here.membership.take();
                self.make(rank, number, generation, &members);
            }
            Verdict::Completed => {
                let kept = here.ready.get(&u64::MAX).and_then(|kept| kept.first().copied());
                let name =
                    kept.map(|next| self.processes[rank as usize].communicators[next as usize].name.clone());
                let here = &mut self.processes[rank as usize].communicators[number];
                let generation =
                    name.as_ref().and_then(|name| name.last()).map(|(generation, _)| *generation);
                match (kept, generation) {
                    (Some(next), Some(generation)) if here.membership.complete(generation) => {
                        self.flush(rank, number);
                        return self.go_on(rank, number, next as usize, began);
                    }
                    _ => (here.failed, here.calling) = (true, None),
                }
            }
            Verdict::Excluded | Verdict::CutOff | Verdict::NoPaths | Verdict::Differs(_) => {
                (here.failed, here.calling) = (true, None);
                here.membership.stand_down();
                if self.random.one_in(2) {
                    let later = now + self.random.below(1000);
                    self.at(later, Event::Leave(rank));
                }
            }
        }
        self.flush(rank, number);
    }

    /// Makes the communicator of `members`, which takes a moment, and says so.
    fn make(&mut self, rank: u32, number: usize, generation: u64, members: &Ranks) {
        let hosts = self.hosts.clone();
        let process = &mut self.processes[rank as usize];
        let here = &process.communicators[number];
        let ranks: Vec<u32> = members.iter().map(|member| here.ranks[*member as usize]).collect();
        let me = ranks.iter().position(|member| *member == rank).expect("it is a member") as u32;
        let mut name = here.name.clone();
        name.push((generation, ranks.iter().copied().collect()));
        let of_hosts = ranks.iter().map(|member| hosts[*member as usize]).collect();
        let mut membership = Membership::new(me, of_hosts, true);
        for (peer, member) in ranks.iter().enumerate() {
            if process.cut.contains(member) {
                membership.lost(peer as u32, false);
            }
        }
        let next = process.communicators.len();
        let ready = BTreeMap::new();
        process.communicators.push(Communicator {
            name,
            ranks,
            membership,
            calling: None,
            making: None,
            ready,
            failed: false,
        });
        let here = &mut process.communicators[number];
        here.making = Some((generation, next));
        let me = here.ranks.iter().position(|member| *member == rank).expect("it is one of them") as u32;
        here.ready.entry(generation).or_default().insert(me);
        let (name, peers) =
            (here.name.clone(), members.iter().map(|m| here.ranks[*m as usize]).collect::<Vec<_>>());
        for peer in peers.into_iter().filter(|peer| *peer != rank) {
            self.say(rank, peer, &name, Word::Ready(generation));
        }
    }

    /// `shrink` returns the communicator `next`.
    fn go_on(&mut self, rank: u32, number: usize, next: usize, began: Time) {
        let now = self.now;
        let process = &mut self.processes[rank as usize];
        process.communicators[number].calling = None;
        process.current = next;
        process.communicators[next].membership.activate();
        let name = process.communicators[next].name.clone();
        let lost = process.communicators[next].ranks.iter().any(|member| process.cut.contains(member));
        process.returned.push((name, began));
        process.call_at = None;
        if lost {
            process.call_at = Some(now + 100);
        }
        self.flush(rank, next);
        self.drop_others(rank, number, next);
        self.made_one = true;
    }

    /// Leaves the communicators that were made from `number` and not returned.
    fn drop_others(&mut self, rank: u32, number: usize, next: usize) {
        let communicators = &self.processes[rank as usize].communicators;
        let parent = communicators[number].name.clone();
        let made = |name: &Name| name.len() == parent.len() + 1 && name.starts_with(&parent);
        let others: Vec<Name> = communicators
            .iter()
            .map(|l| l.name.clone())
            .filter(|n| made(n) && *n != communicators[next].name)
            .collect();
        for name in others {
            for peer in (0..self.size()).filter(|peer| *peer != rank) {
                self.say(rank, peer, &name, Word::Bye);
            }
        }
    }
}
