//! Samples that go to the engine without a promise, such as ones that are followed token by token: their quotas, and
//! what they took.

use crate::accounts::tally::{Tally, rate_tokens};
use crate::accounts::usage::Work;
use crate::command::Command;
use crate::engine::handle::Reply;
use crate::engine::meter::Consumer;
use crate::ids::OwnerId;
use crate::store::usage::Counters;

use super::Futures;
use super::admission::Full;
use super::complete::done;

impl Futures {
    /// Takes the samples of one request out of its account's rates, all of them or none: one that a refusal of the next
    /// would cancel must not have been paid for.
    pub fn admit_samples<'a>(
        &self,
        owner: &OwnerId,
        samples: impl IntoIterator<Item = &'a Command>,
    ) -> Result<(), Full> {
        let add = |(n, sum): (u64, u64), sample| (n + 1, sum.saturating_add(rate_tokens(sample)));
        let (requests, tokens) = samples.into_iter().fold((0, 0), add);
        self.pace.admit(owner, requests, tokens)
    }

    /// → the reply to give to the engine with an admitted sample, which counts what it took under `work` before it calls
    /// the one given here. The sample's session is named only if it is a sampler's.
    pub fn counted(&self, command: &Command, work: Work, reply: Reply) -> Reply {
        let Command::Sample { origin, .. } = command else { return reply };
        let consumer = Consumer::Sample(origin.promise.clone());
        let mut tally = Tally::of(command, None, &self.runs);
        if let Some(spender) = &mut tally.spender {
            spender.session = spender.session.take().filter(|_| matches!(work, Work::Sampler(_)));
            spender.work = work;
        }
        let mut count = Count { futures: self.clone(), consumer, tally, took: None };
        Box::new(move |outcome| {
            if let Ok(outcome) = &outcome {
                count.took = Some(count.tally.with(outcome));
            }
            drop(count);
            reply(outcome);
        })
    }
}

/// Counts what a sample took when it is dropped: of one that failed, or whose reply is never called, the device's time.
struct Count {
    futures: Futures,
    consumer: Consumer,
    tally: Tally,
    /// Of an outcome; without one it is what the device had done.
    took: Option<Counters>,
}

impl Drop for Count {
    fn drop(&mut self) {
        let spent = self.futures.engine.take_spent(&self.consumer, 0);
        let took = self.took.take().unwrap_or_else(|| done(&spent));
        let device_micros = spent.time.as_micros() as u64;
        self.futures.took(&mut self.tally, Counters { device_micros, ..took });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::tally::testing::sample;
    use crate::command::{Outcome, SampleOutput};
    use crate::config::quotas::Quotas;
    use crate::engine::meter::Spent;
    use crate::futures::testing::{Rig, owner};
    use crate::ids::{ModelId, SamplerId};
    use crate::store::usage::UsageFilter;
    use chrono::{DateTime, TimeDelta, Utc};
    use std::time::Duration;

    fn ask(rig: &Rig, command: Command, work: Work, reply: Reply) -> Result<Reply, Full> {
        rig.futures.admit_samples(&owner(), [&command])?;
        Ok(rig.futures.counted(&command, work, reply))
    }

    #[tokio::test]
    async fn a_dropped_reply_counts_the_devices_time() {
        let rig = Rig::new().await;
        let command = sample(owner(), 5, 1);
        let Command::Sample { origin, .. } = &command else { panic!("not a sample") };
        let consumer = Consumer::Sample(origin.promise.clone());
        rig.meter.spent(Duration::from_micros(7), vec![(consumer.clone(), 1)]);
        drop(rig.futures.counted(&command, Work::Other, Box::new(|_| ())));
        assert_eq!(rig.meter.take(&consumer, 0), Spent::default());
        rig.futures.usage().flush(&rig.store, Utc::now()).await.unwrap();
        let all = UsageFilter::all(&owner(), DateTime::UNIX_EPOCH, Utc::now() + TimeDelta::hours(1));
        let [(_, counters)] = &rig.store.usage_by_day(&all).await.unwrap()[..] else { panic!("one row") };
        assert_eq!((counters.device_micros, counters.prefill_tokens), (7, 0));
    }

    #[tokio::test]
    async fn it_is_counted_and_its_reply_called() {
        let rig = Rig::new().await;
        rig.futures.accounts().set(owner(), Quotas { requests_per_minute: Some(2), ..Quotas::default() });
        let (tx, rx) = std::sync::mpsc::channel();
        let asked = |work| {
            let tx = tx.clone();
            let reply = Box::new(move |outcome: crate::error::Result<Outcome>| tx.send(outcome.is_ok()).unwrap());
            ask(&rig, sample(owner(), 5, 1), work, reply)
        };
        let sampler = SamplerId("s:sample:0".into());
        let run = ModelId("r:train:0".into());
        for work in [Work::Run(run.clone()), Work::Sampler(sampler.clone())] {
            let Ok(reply) = asked(work) else { panic!("there is room for two") };
            reply(Ok(Outcome::Sampled(SampleOutput::default())));
        }
        assert!(asked(Work::Other).err().unwrap().why.contains("requests_per_minute: limit 2, used 2"));
        assert_eq!(rx.try_iter().collect::<Vec<_>>(), [true, true]);
        rig.futures.usage().flush(&rig.store, Utc::now()).await.unwrap();
        let all = UsageFilter::all(&owner(), DateTime::UNIX_EPOCH, Utc::now() + TimeDelta::hours(1));
        let rows = rig.store.usage_by_day(&all).await.unwrap();
        let told: Vec<_> =
            rows.into_iter().map(|(k, c)| (k.session.is_some(), k.run, k.sampler, c.prefill_tokens)).collect();
        assert_eq!(told, [(false, Some(run), None, 5), (true, None, Some(sampler), 5)]);
    }

    #[tokio::test]
    async fn what_it_may_generate_counts_until_it_has_ended() {
        let rig = Rig::new().await;
        rig.futures.accounts().set(owner(), Quotas { tokens_per_minute: Some(30), ..Quotas::default() });
        let asked = || ask(&rig, sample(owner(), 5, 2), Work::Other, Box::new(|_| ()));
        let used = || rig.futures.pace().used(&owner()).tokens.unwrap();
        let Ok(first) = asked() else { panic!("there is room for 5 + 2 * 9 tokens") };
        assert_eq!(used(), 23);
        assert!(asked().err().unwrap().why.contains("limit 30, used 23 and this request takes 23"));
        first(Ok(Outcome::Sampled(SampleOutput::default())));
        assert_eq!(used(), 5, "nothing was generated");
        let Ok(dropped) = asked() else { panic!("there is room again") };
        drop(dropped);
        assert_eq!(used(), 10);
    }
}
