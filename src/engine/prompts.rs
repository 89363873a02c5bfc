//! The sampler's prompts: which pieces run together, and what becomes of a prompt that is through.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::engine::job::Job;
use crate::engine::meter::Piece;
use crate::engine::models::Models;
use crate::engine::prefill::{PIECE_TOKENS, PromptRun, run_pieces};
use crate::engine::sample::{Parts, Sampler};
use crate::engine::sequence::panicked;
use crate::error::{Error, Result};
use crate::ids::OwnerId;
use crate::scheduler::Shares;

impl Sampler {
    /// One piece of work on prompts, `lead`'s first: a few answers about one, or the next tokens of several.
    pub(super) fn run_prompts(&mut self, models: &mut Models, shares: &Shares, lead: &OwnerId) -> Parts {
        self.counters.prompt_piece();
        let questions = |p: &PromptRun| p.has_questions() && p.waiting.origin.owner == *lead;
        let parts = match self.prompts.iter().position(questions) {
            Some(at) => {
                let prompt = &mut self.prompts[at];
                let part = vec![(prompt.waiting.origin.promise.clone(), 1)];
                let answer = || models.meter.samples(Piece::Questions, part, || prompt.answer(models));
                let answered = catch_unwind(AssertUnwindSafe(answer));
                if let Err(e) = answered.unwrap_or_else(|_| Err(panicked())) {
                    self.drop_prompt(at, e);
                }
                vec![(lead.clone(), 1)]
            }
            None => self.next_pieces(models, shares, lead),
        };
        self.finish_prompts();
        self.begin_samples(models, shares);
        parts
    }

    /// The next tokens of prompts of one lane: those that are begun, `lead`'s first, then new ones.
    fn next_pieces(&mut self, models: &mut Models, shares: &Shares, lead: &OwnerId) -> Parts {
        self.prompts.sort_by_key(|p| p.waiting.origin.owner != *lead);
        let (mut chosen, mut room): (Vec<(usize, usize)>, usize) = (Vec::new(), PIECE_TOKENS);
        let mut lane = None;
        let take = |p: &PromptRun, room: usize, lane: Option<u64>| {
            let fits = !p.has_questions() && lane.is_none_or(|l| l == p.source.lane);
            if fits { p.next_tokens(room) } else { 0 }
        };
        for (at, p) in self.prompts.iter().enumerate() {
            let n = take(p, room, lane);
            if n > 0 {
                lane = Some(p.source.lane);
                chosen.push((at, n));
                room -= n;
            }
        }
        while room > 0 {
            // A lead that has nothing begun comes in whatever the lane is.
            let Some(prompt) = self.begin_prompt(models, shares, lead, room, lane) else { break };
            let n = take(&prompt, room, lane);
            lane = Some(prompt.source.lane);
            chosen.push((self.prompts.len(), n));
            room -= n;
            self.prompts.push(prompt);
        }
        let parts = chosen.iter().map(|(at, n)| (self.prompts[*at].waiting.origin.owner.clone(), *n)).collect();
        self.run_chosen(models, chosen);
        parts
    }

    /// Takes the next request for which there is room, and its weights; one whose weights are gone is answered. None when
    /// nothing waits that fits beside what was chosen.
    fn begin_prompt(
        &mut self,
        models: &mut Models,
        shares: &Shares,
        lead: &OwnerId,
        tokens: usize,
        lane: Option<u64>,
    ) -> Option<PromptRun> {
        loop {
            let room = self.room(shares);
            let rank = |o: &OwnerId| if o == lead { -1.0 } else { room.begun(o) as f64 / shares.weight(o) };
            // Beside others only what is run at once.
            let w = self
                .waiting
                .take(rank, |o, w| room.admits(o, w.need) && (lane.is_none() || w.request.prompt.len() <= tokens))?;
            match models.source(&w.request.base, &w.request.source) {
                Ok(source) if lane.is_none_or(|l| l == source.lane) => return Some(PromptRun::new(models, w, source)),
                Ok(_) => {
                    self.waiting.put_back(w);
                    return None;
                }
                Err(e) => (w.reply)(Err(e)),
            }
        }
    }

    /// Runs so many tokens of the prompts at these places. A panic fails only those that fail again alone.
    fn run_chosen(&mut self, models: &Models, mut chosen: Vec<(usize, usize)>) {
        // Requests of one adapter lie side by side, so that it acts on them in one product.
        chosen.sort_by_key(|(at, _)| (Arc::as_ptr(&self.prompts[*at].source) as usize, *at));
        if chosen.is_empty() || self.run_together(models, &chosen).is_ok() {
            return;
        }
        let alone =
            |one: &(usize, usize)| self.run_together(models, std::slice::from_ref(one)).err().map(|e| (one.0, e));
        let mut failed: Vec<(usize, Error)> = chosen.iter().filter_map(alone).collect();
        failed.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        failed.into_iter().for_each(|(at, e)| self.drop_prompt(at, e));
    }

    fn run_together(&mut self, models: &Models, chosen: &[(usize, usize)]) -> Result<()> {
        let mut places: Vec<Option<&mut PromptRun>> = self.prompts.iter_mut().map(Some).collect();
        let mut runs: Vec<&mut PromptRun> = chosen.iter().filter_map(|(at, _)| places[*at].take()).collect();
        let tokens: Vec<usize> = chosen.iter().map(|(_, n)| *n).collect();
        let parts = runs.iter().zip(&tokens).map(|(r, n)| (r.waiting.origin.promise.clone(), *n)).collect();
        let run = || models.meter.samples(Piece::Prompt, parts, || run_pieces(models, &mut runs, &tokens));
        catch_unwind(AssertUnwindSafe(run)).map_err(|_| panicked())
    }

    fn drop_prompt(&mut self, at: usize, error: Error) {
        (self.prompts.remove(at).waiting.reply)(Err(error));
    }

    /// Prompts that are through become jobs.
    fn finish_prompts(&mut self) {
        let done: Vec<PromptRun> = self.prompts.extract_if(.., |p| p.is_done()).collect();
        for done in done.into_iter().filter_map(PromptRun::into_done) {
            self.jobs.push_back((self.next_job, Job::new(done)));
            self.next_job += 1;
        }
    }
}
