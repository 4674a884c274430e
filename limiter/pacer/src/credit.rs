//! What a thread may launch without asking the bucket, and how many launches it made since: most
//! launches of small kernels end here, on a cache line that no other thread writes to.
//!
//! Fed by: grants from the bucket. Must not: use a locked instruction where a launch passes. Two
//! threads that fall on one purse may lose one of two updates that happen in the same nanoseconds.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::bucket::FORGED;

/// Nanoseconds of GPU time that are taken from the bucket at once, at least.
pub const CHUNK: u64 = 1_000_000;
/// Launches after which one is measured, however little they cost.
pub const ROUND: u64 = 256;

/// Nanoseconds after which what others of the container took from the bucket is launched and done.
const QUIET: u64 = 50_000_000;

const PURSES: usize = 16;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Purse {
    left: AtomicU64,
    launches: AtomicU64,
    /// 1: the next launch is to be measured.
    due: AtomicU64,
    /// Into which the last launch went.
    stream: AtomicU64,
    /// 1: others since this thread last entered.
    mixed: AtomicU64,
    /// Until when the container's work was thought to run, after this thread last entered.
    until: AtomicU64,
    /// When others' work was last seen there.
    met: AtomicU64,
    /// The host's sign of life when launches were last told of.
    beat: AtomicU64,
}

/// The purses of a process for one card.
#[derive(Debug, Default)]
pub struct Credit([Purse; PURSES]);

impl Credit {
    /// Pays for a launch of thread `thread` (any number that mostly differs between threads);
    /// false when the bucket is to be asked or the launch to be measured.
    #[inline]
    pub fn spend(&self, thread: usize, stream: u64, cost: u64) -> bool {
        let purse = &self.0[thread % PURSES];
        let launches = purse.launches.load(Relaxed) + 1;
        purse.launches.store(launches, Relaxed);
        if purse.stream.load(Relaxed) != stream {
            purse.stream.store(stream, Relaxed);
            purse.mixed.store(1, Relaxed);
        }
        let left = purse.left.load(Relaxed);
        if launches >= ROUND || left < cost || purse.due.load(Relaxed) != 0 {
            return false;
        }
        purse.left.store(left - cost, Relaxed);
        true
    }

    /// The next launch of this thread is to be measured: it comes right behind another, so that
    /// its marks hold no time in which the card waited for the program.
    pub fn measure_next(&self, thread: usize) {
        self.0[thread % PURSES].due.store(1, Relaxed);
    }

    /// Notes that `chunk` nanoseconds of work go to the card; `until` is the container's word of
    /// when all that was launched is thought to be done. True when work of other threads,
    /// processes or streams of the container may run there at the same time.
    pub fn enter(
        &self,
        thread: usize,
        stream: u64,
        until: &AtomicU64,
        (now, chunk): (u64, u64),
    ) -> bool {
        let purse = &self.0[thread % PURSES];
        let found = until.load(Relaxed);
        let before = if found > now.saturating_add(FORGED) {
            now
        } else {
            found
        };
        let after = before.max(now).saturating_add(chunk);
        until.store(after, Relaxed);
        let own = purse.until.swap(after, Relaxed) == before
            && purse.mixed.swap(0, Relaxed) == 0
            && purse.stream.swap(stream, Relaxed) == stream;
        purse.due.store(0, Relaxed);
        if !own && before.saturating_add(QUIET) > now {
            purse.met.store(now, Relaxed);
        }
        // They may take a while to launch what they took.
        let met = purse.met.load(Relaxed);
        met != 0 && met.saturating_add(QUIET) > now
    }

    /// Counts a launch that needs no credit; true when launches are to be told of: once a round,
    /// and at each sign of life of the host, which so sees who is at work.
    #[inline]
    pub fn count(&self, thread: usize, beat: u64) -> bool {
        let purse = &self.0[thread % PURSES];
        let launches = purse.launches.load(Relaxed) + 1;
        purse.launches.store(launches, Relaxed);
        launches >= ROUND || purse.beat.load(Relaxed) != beat
    }

    /// The host gave a sign of life since launches of this thread were last told of.
    #[inline]
    pub fn is_due(&self, thread: usize, beat: u64) -> bool {
        self.0[thread % PURSES].beat.load(Relaxed) != beat
    }

    /// What the bucket is asked for a launch of this cost that the purse could not pay for: the
    /// rest becomes credit.
    pub fn chunk(&self, thread: usize, cost: u64) -> u64 {
        let left = self.0[thread % PURSES].left.load(Relaxed);
        if left >= cost { 0 } else { cost.max(CHUNK) }
    }

    /// Adds what was taken from the bucket, and pays for a launch from it.
    pub fn grant(&self, thread: usize, chunk: u64, cost: u64) {
        let purse = &self.0[thread % PURSES];
        let all = purse.left.load(Relaxed).saturating_add(chunk);
        purse.left.store(all.saturating_sub(cost), Relaxed);
    }

    /// Launches that were not told yet, which they are now, at this sign of life of the host.
    pub fn launches(&self, thread: usize, beat: u64) -> u64 {
        let purse = &self.0[thread % PURSES];
        purse.beat.store(beat, Relaxed);
        purse.launches.swap(0, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: u64 = 5;

    #[test]
    fn a_grant_pays_for_launches_until_it_is_used_up() {
        let credit = Credit::default();
        assert!(!credit.spend(0, STREAM, 300_000), "nothing is there");
        assert_eq!(credit.chunk(0, 300_000), CHUNK);
        credit.grant(0, CHUNK, 300_000);
        assert!(credit.spend(0, STREAM, 300_000));
        assert!(credit.spend(0, STREAM, 300_000));
        assert!(!credit.spend(0, STREAM, 300_000), "100000 are left");
        assert!(!credit.spend(1, STREAM, 1), "another thread has its own");
        assert_eq!(credit.launches(0, 0), 4);
        assert_eq!(credit.launches(0, 0), 0);
    }

    #[test]
    fn a_large_kernel_is_charged_exactly() {
        let credit = Credit::default();
        assert_eq!(credit.chunk(3, 7_000_000), 7_000_000);
        credit.grant(3, 7_000_000, 7_000_000);
        assert!(!credit.spend(3, STREAM, 1));
    }

    #[test]
    fn even_free_launches_are_measured_once_a_round() {
        let credit = Credit::default();
        credit.grant(0, CHUNK, 0);
        let passed = (0..ROUND).filter(|_| credit.spend(0, STREAM, 0)).count();
        assert_eq!(passed as u64, ROUND - 1);
        assert_eq!(credit.chunk(0, 0), 0, "nothing is charged for it");
        credit.launches(0, 0);
        assert!(credit.spend(0, STREAM, 0));
        credit.measure_next(0);
        assert!(!credit.spend(0, STREAM, 0));
        credit.enter(0, STREAM, &AtomicU64::new(0), (0, 0));
        assert!(credit.spend(0, STREAM, 0), "once");
        assert!((0..ROUND).any(|_| credit.count(1, 0)));
    }

    #[test]
    fn launches_are_told_at_each_sign_of_life_of_the_host() {
        let credit = Credit::default();
        assert!(!credit.count(0, 0) && !credit.is_due(0, 0));
        assert!(credit.count(0, 7) && credit.is_due(0, 7));
        assert_eq!(credit.launches(0, 7), 2);
        assert!(!credit.count(0, 7) && !credit.is_due(0, 7));
        assert!(credit.is_due(1, 7), "another thread tells of its own");
    }

    #[test]
    fn work_of_other_threads_and_streams_is_told_from_ones_own() {
        let (credit, until) = (Credit::default(), AtomicU64::new(0));
        let enter = |thread, stream, now| credit.enter(thread, stream, &until, (now, 100));
        let at = |moment: u64| moment * 2 * QUIET;
        assert!(!enter(0, STREAM, at(2)), "the card was idle");
        assert!(!enter(0, STREAM, at(2) + 50), "only its own is before it");
        assert!(enter(1, STREAM, at(2) + 60), "another thread's is");
        assert!(enter(1, STREAM, at(2) + 70), "that may still be there");
        assert!(enter(0, STREAM, at(2) + 80));
        assert!(!enter(0, STREAM, at(3) + 90), "that is done");
        assert!(enter(0, 6, at(3) + 100), "another stream's is");
        assert!(!enter(1, STREAM, at(5)), "all is done");
        credit.spend(1, 6, 0);
        credit.spend(1, STREAM, 0);
        assert!(enter(1, STREAM, at(5) + 1), "it used another stream");
        until.store(u64::MAX, Relaxed);
        enter(0, STREAM, at(9));
        let after = until.load(Relaxed);
        assert_eq!(after, at(9) + 100, "no launch can have made that word");
    }
}
