//! Forms a pass: whole datums of several runs on the same weights, packed to a token budget.

use std::ops::Range;

use super::{Lane, Scheduler, Shares};
use crate::ids::ModelId;

/// Datums of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub model: ModelId,
    pub seq: u64,
    pub datums: Range<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    pub lane: Lane,
    pub items: Vec<Item>,
}

impl Scheduler {
    /// A pass that begins with `first`'s ready request and goes on with the other runs, those of the same owner in front,
    /// then those of the owners who used least. A run whose request is used up goes on with its next one, so that the
    /// chunks of one call run together. Other owners add no more than the pass has already, or a quarter of the budget:
    /// a small request must not wait for a whole pass of theirs.
    pub(super) fn form_pass(&mut self, first: ModelId, shares: &Shares) -> Pass {
        let lane = self.runs[&first].queue.lane().expect("the caller saw data ready");
        let owner = self.runs[&first].owner.clone();
        let mut others: Vec<ModelId> = self.turn.iter().filter(|m| **m != first).cloned().collect();
        let foreign = |m: &ModelId| self.runs[m].owner != owner;
        others.sort_by(|a, b| foreign(a).cmp(&foreign(b)).then(shares.order(&self.runs[a].owner, &self.runs[b].owner)));
        let mut items = Vec::new();
        let (mut room, mut guests) = (self.pass_tokens, false);
        for model in std::iter::once(first).chain(others) {
            let run = self.runs.get_mut(&model).expect("every run in turn has a queue");
            if run.owner != owner && !guests {
                guests = true;
                room = room.min((self.pass_tokens - room).max(self.pass_tokens / 4));
            }
            while let Some((seq, datums, tokens)) = run.queue.take_data(lane, room, items.is_empty()) {
                room = room.saturating_sub(tokens);
                items.push(Item { model: model.clone(), seq, datums });
            }
        }
        Pass { lane, items }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Queued, Use, Work};
    use super::*;
    use crate::ids::OwnerId;

    const LANE: Lane = Lane { weights: 0, forward_only: false };

    fn run(name: &str) -> ModelId {
        ModelId(name.into())
    }

    fn data(tokens: &[usize]) -> Queued {
        Queued::Data { lane: LANE, tokens: tokens.to_vec() }
    }

    fn owner(name: &str) -> OwnerId {
        OwnerId(format!("owner of {name}"))
    }

    fn next(s: &mut Scheduler) -> Option<Work> {
        s.next_work(&Shares::default(), true)
    }

    fn items(work: Option<Work>) -> Vec<(String, u64, Range<usize>)> {
        let Some(Work::Pass(p)) = work else { panic!("expected a pass, got {work:?}") };
        p.items.into_iter().map(|i| (i.model.0, i.seq, i.datums)).collect()
    }

    #[test]
    fn requests_run_in_sequence_order_whatever_order_they_arrive_in() {
        let mut s = Scheduler::new(100);
        s.open(run("a"), owner("a"), 1);
        assert!(s.push(&run("a"), 2, Queued::Barrier));
        assert_eq!(next(&mut s), None);
        assert_eq!(s.gaps(), [(run("a"), 1)]);
        assert!(s.push(&run("a"), 1, data(&[5])));
        assert_eq!(items(next(&mut s)), [("a".into(), 1, 0..1)]);
        assert_eq!(next(&mut s), Some(Work::Barrier { model: run("a"), seq: 2 }));
        assert!(!s.push(&run("a"), 2, Queued::Barrier), "a number that is done");
    }

    #[test]
    fn a_skipped_number_does_not_block() {
        let mut s = Scheduler::new(100);
        s.open(run("a"), owner("a"), 1);
        s.push(&run("a"), 3, Queued::Barrier);
        s.skip(&run("a"), 2);
        s.skip(&run("a"), 1);
        assert_eq!(next(&mut s), Some(Work::Barrier { model: run("a"), seq: 3 }));
    }

    #[test]
    fn a_gap_of_any_length_ends_at_the_lowest_number_that_came() {
        let mut s = Scheduler::new(100);
        s.open(run("a"), owner("a"), 1);
        s.push(&run("a"), 900, Queued::Barrier);
        s.push(&run("a"), 700, Queued::Barrier);
        assert!(!s.push(&run("a"), 1 << 40, Queued::Barrier), "absurdly far ahead");
        s.skip_gap(&run("a"));
        assert_eq!(next(&mut s), Some(Work::Barrier { model: run("a"), seq: 700 }));
        assert_eq!(s.gaps(), [(run("a"), 701)]);
    }

    #[test]
    fn runs_share_a_pass_up_to_the_budget_and_datums_stay_whole() {
        let mut s = Scheduler::new(10);
        s.open(run("a"), owner("a"), 1);
        s.open(run("b"), owner("b"), 1);
        s.push(&run("a"), 1, data(&[4, 3, 9]));
        s.push(&run("b"), 1, data(&[2]));
        assert_eq!(items(next(&mut s)), [("a".into(), 1, 0..2), ("b".into(), 1, 0..1)]);
        assert_eq!(items(next(&mut s)), [("a".into(), 1, 2..3)]);
        assert_eq!(next(&mut s), None);
    }

    #[test]
    fn a_datum_beyond_the_budget_runs_alone() {
        let mut s = Scheduler::new(10);
        s.open(run("a"), owner("a"), 1);
        s.push(&run("a"), 1, data(&[50, 1]));
        assert_eq!(items(next(&mut s)), [("a".into(), 1, 0..1)]);
        assert_eq!(items(next(&mut s)), [("a".into(), 1, 1..2)]);
    }

    #[test]
    fn lanes_do_not_mix_and_runs_take_turns() {
        let mut s = Scheduler::new(10);
        s.open(run("a"), owner("a"), 1);
        s.open(run("b"), owner("b"), 1);
        s.push(&run("a"), 1, Queued::Data { lane: Lane { weights: 0, forward_only: true }, tokens: vec![1] });
        s.push(&run("a"), 2, data(&[1]));
        s.push(&run("b"), 1, data(&[1]));
        assert_eq!(items(next(&mut s)), [("a".into(), 1, 0..1)]);
        assert_eq!(items(next(&mut s)), [("b".into(), 1, 0..1), ("a".into(), 2, 0..1)]);
    }

    #[test]
    fn closing_a_run_gives_back_what_waited() {
        let mut s = Scheduler::new(10);
        s.open(run("a"), owner("a"), 1);
        s.push(&run("a"), 4, Queued::Barrier);
        s.push(&run("a"), 2, data(&[1]));
        assert_eq!(s.close(&run("a")), [2, 4]);
        assert!(!s.push(&run("a"), 5, Queued::Barrier));
    }

    #[test]
    fn the_owner_who_used_least_is_served_first_and_fills_up_first() {
        let mut s = Scheduler::new(10);
        for name in ["a", "b", "c"] {
            s.open(run(name), owner(name), 1);
            s.push(&run(name), 1, data(&[6, 4]));
        }
        let mut shares = Shares::default();
        shares.charge(Use::Training, &[(owner("a"), 1)], 3.0);
        shares.charge(Use::Sampling, &[(owner("b"), 1)], 2.0);
        shares.charge(Use::Training, &[(owner("c"), 1)], 1.0);
        assert_eq!(s.next_owner(&shares, true), Some(&owner("c")));
        assert_eq!(items(s.next_work(&shares, true)), [("c".into(), 1, 0..2)]);
        s.push(&run("c"), 2, data(&[1]));
        shares.charge(Use::Training, &[(owner("c"), 1)], 3.0);
        assert_eq!(items(s.next_work(&shares, true)), [("b".into(), 1, 0..2)]);
        assert_eq!(items(s.next_work(&shares, true)), [("a".into(), 1, 0..2)]);
        assert_eq!(items(s.next_work(&shares, true)), [("c".into(), 2, 0..1)]);
    }

    #[test]
    fn a_small_request_does_not_wait_for_a_whole_pass_of_others() {
        let mut s = Scheduler::new(100);
        for name in ["small", "flood"] {
            s.open(run(name), owner(name), 1);
        }
        s.push(&run("small"), 1, data(&[5]));
        s.push(&run("flood"), 1, data(&[10; 20]));
        assert_eq!(items(next(&mut s)), [("small".into(), 1, 0..1), ("flood".into(), 1, 0..2)]);
        assert_eq!(items(next(&mut s)), [("flood".into(), 1, 2..12)]);
    }

    #[test]
    fn a_save_without_a_writer_holds_up_its_own_run_alone() {
        let mut s = Scheduler::new(10);
        s.open(run("a"), owner("a"), 1);
        s.open(run("b"), owner("b"), 1);
        s.push(&run("a"), 1, Queued::Save);
        s.push(&run("a"), 2, data(&[1]));
        s.push(&run("b"), 1, data(&[2]));
        assert_eq!(items(s.next_work(&Shares::default(), false)), [("b".into(), 1, 0..1)]);
        assert_eq!(s.next_work(&Shares::default(), false), None);
        assert!(s.saves_wait());
        let place = s.places().map(|(m, _, p)| (m.0.as_str(), p.next, p.waiting, p.save)).collect::<Vec<_>>();
        assert_eq!(place, [("a", 1, 2, true)]);
        assert_eq!(next(&mut s), Some(Work::Barrier { model: run("a"), seq: 1 }));
        assert_eq!(items(next(&mut s)), [("a".into(), 2, 0..1)]);
    }
}
