//! The fail-points of the scheduler, and what makes it pass each of them. A test compares the names
//! with those in the scheduler.

/// What makes a replica pass a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provocation {
    /// Pods that come and go.
    Load,
    /// Created Bindings whose response the scheduler never gets.
    LostAnswers,
    /// Bindings that the API server refuses.
    Rejections,
    /// A pod with a forged allocation, which its node refuses.
    Forgery,
    /// Bound pods whose shares are resized.
    Resizes,
    /// A kill of the other replica, which stays down meanwhile.
    NewTerm,
}

/// A fail-point.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// As the scheduler calls it.
    pub name: &'static str,
    /// What leads there.
    pub provocation: Provocation,
    /// The most times that it is passed before a process is killed there.
    pub passages: u32,
}

const fn place(name: &'static str, provocation: Provocation, passages: u32) -> Place {
    Place {
        name,
        provocation,
        passages,
    }
}

/// All of them.
pub const PLACES: &[Place] = &[
    place("BeforeReserve", Provocation::Load, 20),
    place("AfterReserve", Provocation::Load, 20),
    place("BeforePost", Provocation::Load, 20),
    place("AfterPost", Provocation::Load, 20),
    place("BetweenPosts", Provocation::LostAnswers, 2),
    place("AfterCreated", Provocation::Load, 20),
    place("BeforeEvent", Provocation::Load, 20),
    place("AfterEvent", Provocation::Load, 20),
    place("BeforeCancel", Provocation::Rejections, 2),
    place("AfterCancel", Provocation::Rejections, 2),
    place("RequeueBeforePatch", Provocation::Load, 3),
    place("RequeueAfterPatch", Provocation::Load, 3),
    place("EvictBefore", Provocation::Forgery, 1),
    place("EvictAfter", Provocation::Forgery, 1),
    place("ResizeReserved", Provocation::Resizes, 5),
    place("ResizeBeforePatch", Provocation::Resizes, 5),
    place("ResizeAfterPatch", Provocation::Resizes, 5),
    place("TermBeforeList", Provocation::NewTerm, 1),
    place("TermAfterList", Provocation::NewTerm, 1),
    place("BeforeReset", Provocation::NewTerm, 1),
    place("AfterReset", Provocation::NewTerm, 1),
    place("BeforeApply", Provocation::Load, 50),
    place("AfterApply", Provocation::Load, 50),
    place("FilterFits", Provocation::Load, 20),
    place("FilterRefuses", Provocation::Load, 5),
];

impl Place {
    /// Whether getting there changes the leader.
    pub fn changes_leader(self) -> bool {
        self.provocation == Provocation::NewTerm
    }
}

/// Which processes are killed of the replica that passes the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victims {
    /// The extender; kube-scheduler retains the lease.
    Extender,
    /// kube-scheduler; the extender goes on.
    KubeScheduler,
    /// The whole replica.
    Both,
}

impl Victims {
    /// All of them; the first twice as likely where one is chosen, because a
    /// change of leader takes so much longer.
    pub const DRAWN: [Self; 4] = [
        Self::Extender,
        Self::Extender,
        Self::KubeScheduler,
        Self::Both,
    ];
}
