//! A look that may hang or panic, as drivers and disks do: on a thread of its own, waited for no longer than allowed.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::time::Duration;

/// What `look` found, or why there is nothing.
pub fn within<T: Send + 'static>(limit: Duration, look: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    let (tx, rx) = channel();
    std::thread::spawn(move || {
        let _ = tx.send(catch_unwind(AssertUnwindSafe(look)));
    });
    match rx.recv_timeout(limit) {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(panic)) => Err(format!("it broke off: {}", message(&*panic))),
        Err(_) => Err(format!("no answer in {} s", limit.as_secs())),
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without a word").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_or_panics_is_told() {
        assert_eq!(within(Duration::from_secs(9), || 7), Ok(7));
        assert_eq!(
            within(Duration::from_secs(9), || panic!("no driver")),
            Err::<(), _>("it broke off: no driver".into())
        );
        let hangs = || std::thread::sleep(Duration::from_secs(30));
        assert_eq!(within(Duration::ZERO, hangs), Err("no answer in 0 s".into()));
    }
}
