//! Named places at which a test can have the agent killed.
//!
//! Only in builds with the feature `fail-points`, which `aliquot-device-plugin` rejects; everywhere
//! else [`at`] is empty. Such a build reads the file that `ALIQUOT_FAIL_POINT_FILE` names at every
//! point; when it contains the name of this point, the agent renames it to `*.fired` and sends
//! itself SIGKILL.

/// A place in the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// A change of a GPU's mode has begun in memory; nothing is stored.
    ChangeBeforeStore,
    /// The change is stored; nothing is published.
    ChangeAfterStore,
    /// The change is stored and published.
    ChangePublished,
    /// The old mode is about to be removed.
    BeforeLeave,
    /// The old mode is removed; that is not stored.
    AfterLeave,
    /// The new mode is about to be applied.
    BeforeEnter,
    /// The new mode is applied; that is not stored.
    AfterEnter,
    /// A pod is accepted; its allocation is not stored.
    ShareBeforeStore,
    /// Its allocation is stored; the names of its files are not.
    ShareAfterStore,
    /// The names are stored; no file is written.
    NamesStored,
    /// The container directory exists; no spec does.
    DirectoryWritten,
    /// The first of its CDI specs is written.
    SpecWritten,
    /// All files are written; the kubelet is not answered.
    StartServed,
    /// The new share of a running pod is stored; its limits pages are not written.
    ResizeStored,
    /// Its limits pages are written; that is not reported.
    ResizeWritten,
}

/// Those of a change of a mode and of a start, in the order in which they are reached.
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
    Point::DirectoryWritten,
    Point::SpecWritten,
    Point::StartServed,
];

impl Point {
    /// It is reached by a change of a GPU's mode; else by a container's start.
    pub fn is_mode_change(self) -> bool {
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

/// Empty in a build that is shipped.
#[cfg(not(feature = "fail-points"))]
#[inline]
pub(crate) fn at(_: Point) {}

/// Kills the agent if a test selected this point.
#[cfg(feature = "fail-points")]
pub(crate) fn at(point: Point) {
    let Some(control) = std::env::var_os("ALIQUOT_FAIL_POINT_FILE") else {
        return;
    };
    let control = std::path::PathBuf::from(control);
    let selected = std::fs::read_to_string(&control).is_ok_and(|name| name == format!("{point:?}"));
    if selected {
        let _gone = std::fs::rename(&control, control.with_extension("fired"));
        let me = rustix::process::getpid();
        let _ended = rustix::process::kill_process(me, rustix::process::Signal::KILL);
    }
}
