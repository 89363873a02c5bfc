//! One run's requests in order of `seq_id`, whatever order they arrive in.

use std::collections::{BTreeMap, BTreeSet};

use super::{Lane, Place, Queued};

/// How far ahead of the next number a request may lie. Clients send a few hundred ahead at most.
const FARTHEST: u64 = 1 << 20;

pub struct RunQueue {
    /// The lowest number not yet done.
    next: u64,
    waiting: BTreeMap<u64, Queued>,
    /// Numbers above `next` that will never come.
    skipped: BTreeSet<u64>,
    /// Datums of request `next` that passes have already taken.
    taken: usize,
}

impl RunQueue {
    pub fn new(first: u64) -> Self {
        Self { next: first, waiting: BTreeMap::new(), skipped: BTreeSet::new(), taken: 0 }
    }

    pub fn push(&mut self, seq: u64, queued: Queued) -> bool {
        if seq < self.next || seq > self.next + FARTHEST || self.waiting.contains_key(&seq) {
            return false;
        }
        self.skipped.remove(&seq);
        self.waiting.insert(seq, queued);
        true
    }

    pub fn skip(&mut self, seq: u64) {
        if (self.next..=self.next + FARTHEST).contains(&seq) && !self.waiting.contains_key(&seq) {
            self.skipped.insert(seq);
            self.pass_skipped();
        }
    }

    pub fn skip_gap(&mut self) {
        if let Some(first) = self.waiting.keys().next().copied()
            && first > self.next
        {
            self.next = first;
            self.taken = 0;
            self.skipped = self.skipped.split_off(&first);
        }
    }

    fn pass_skipped(&mut self) {
        while self.skipped.remove(&self.next) {
            self.next += 1;
        }
    }

    fn done(&mut self) {
        self.waiting.remove(&self.next);
        self.next += 1;
        self.taken = 0;
        self.pass_skipped();
    }

    pub fn next(&self) -> u64 {
        self.next
    }

    /// The request that may run now.
    pub fn ready(&self) -> Option<&Queued> {
        self.waiting.get(&self.next)
    }

    /// The number everything here waits for, when it has not come.
    pub fn gap(&self) -> Option<u64> {
        (!self.waiting.is_empty() && !self.waiting.contains_key(&self.next)).then_some(self.next)
    }

    /// Where the run stands; nothing when nothing waits.
    pub fn place(&self) -> Option<Place> {
        let (gap, save) = (self.gap().is_some(), self.ready() == Some(&Queued::Save));
        (!self.waiting.is_empty()).then_some(Place { next: self.next, waiting: self.waiting.len(), gap, save })
    }

    pub fn take_barrier(&mut self) -> Option<u64> {
        if !matches!(self.ready(), Some(Queued::Barrier | Queued::Save)) {
            return None;
        }
        let seq = self.next;
        self.done();
        Some(seq)
    }

    /// Takes datums of the ready request, in order, while they fit: → its number, the datums, their tokens.
    pub fn take_data(&mut self, lane: Lane, room: usize, force: bool) -> Option<(u64, std::ops::Range<usize>, usize)> {
        let Some(Queued::Data { lane: mine, tokens }) = self.ready() else { return None };
        if *mine != lane {
            return None;
        }
        let (first, mut sum, mut end) = (self.taken, 0, self.taken);
        while end < tokens.len() && (sum + tokens[end] <= room || (force && end == first)) {
            sum += tokens[end];
            end += 1;
        }
        if end == first {
            return None;
        }
        let (seq, all) = (self.next, end == tokens.len());
        self.taken = end;
        if all {
            self.done();
        }
        Some((seq, first..end, sum))
    }

    pub fn lane(&self) -> Option<Lane> {
        match self.ready()? {
            Queued::Data { lane, .. } => Some(*lane),
            Queued::Barrier | Queued::Save => None,
        }
    }

    /// Gives up what waits; goes on behind it.
    pub fn cancel(&mut self) -> Vec<u64> {
        let waiting: Vec<u64> = std::mem::take(&mut self.waiting).into_keys().collect();
        if let Some(last) = waiting.last() {
            self.next = last + 1;
            self.taken = 0;
            self.skipped = self.skipped.split_off(&self.next);
            self.pass_skipped();
        }
        waiting
    }

    pub fn into_numbers(self) -> Vec<u64> {
        self.waiting.into_keys().collect()
    }
}
