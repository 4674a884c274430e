//! Named places at which a test can have the agent killed.
//!
//! Only in builds with the feature `fail-points`, which `aliquot-device-plugin` refuses;
//! everywhere else [`at`] is empty. Such a build reads the file that `ALIQUOT_FAIL_POINT_FILE`
//! names at every passage; when it holds the name of this point, the agent renames it to
//! `*.fired` and kills (-9) itself.
//! Must not: do anything but kill.

/// A place in the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// A change of a card has begun in memory; nothing is stored.
    ChangeBeforeStore,
    /// It is stored; nothing is published.
    ChangeAfterStore,
    /// It is stored and published.
    ChangePublished,
    /// The old mode is about to be taken back.
    BeforeLeave,
    /// It is taken back; that is not stored.
    AfterLeave,
    /// The new mode is about to be made.
    BeforeEnter,
    /// It is made; that is not stored.
    AfterEnter,
    /// A pod is judged and accepted; its share is not stored.
    ShareBeforeStore,
    /// Its share is stored; the names of its files are not.
    ShareAfterStore,
    /// The names are stored; no file is written.
    NamesStored,
    /// The container's seat is there; no spec is.
    SeatWritten,
    /// The first of its specs is written.
    SpecWritten,
    /// All files are written; the kubelet is not answered.
    StartServed,
}

/// All of them, in the order in which they are passed.
pub const ALL: [Point; 13] = [
    Point::ChangeBeforeStore,
    Point::ChangeAfterStore,
    Point::ChangePublished,
    Point::BeforeLeave,
    Point::AfterLeave,
    Point::BeforeEnter,
    Point::AfterEnter,
    Point::ShareBeforeStore,
    Point::ShareAfterStore,
    Point::NamesStored,
    Point::SeatWritten,
    Point::SpecWritten,
    Point::StartServed,
];

impl Point {
    /// It is passed by a switch of a card; else by a container's start.
    pub fn is_of_a_switch(self) -> bool {
        matches!(
            self,
            Self::ChangeBeforeStore
                | Self::ChangeAfterStore
                | Self::ChangePublished
                | Self::BeforeLeave
                | Self::AfterLeave
                | Self::BeforeEnter
                | Self::AfterEnter
        )
    }
}

/// Nothing, in a build that is shipped.
#[cfg(not(feature = "fail-points"))]
#[inline]
pub(crate) fn at(_: Point) {}

/// Kills the agent if a test asked for it here.
#[cfg(feature = "fail-points")]
pub(crate) fn at(point: Point) {
    let Some(control) = std::env::var_os("ALIQUOT_FAIL_POINT_FILE") else {
        return;
    };
    let control = std::path::PathBuf::from(control);
    let asked = std::fs::read_to_string(&control).is_ok_and(|word| word == format!("{point:?}"));
    if asked {
        let _gone = std::fs::rename(&control, control.with_extension("fired"));
        let me = rustix::process::getpid();
        let _ended = rustix::process::kill_process(me, rustix::process::Signal::KILL);
    }
}
