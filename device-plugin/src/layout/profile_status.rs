//! The node condition `AliquotProfile`, which tells the administrator whether the profile is
//! applied. It is applied only when every GPU matches it.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::GpuUuid;
use aliquot_k8s::event::{EventNote, PodRef};
use aliquot_profiles::Mode;

use crate::layout::desired_layout::DesiredLayoutError;
use crate::layout::device_users::DeviceUsers;
use crate::layout::stored_layout::{StoredLayout, cordon};
use crate::layout::transition::{ChangeStep, GpuState};
use crate::modes::ModeError;
use crate::node_view::NodeCondition;

/// The condition type: the node's profile is applied on every GPU.
pub const PROFILE: &str = "AliquotProfile";

/// The longest message, in characters.
const LONGEST: usize = 2000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepError {
    /// It failed, and is retried.
    Failed(String),
    /// It needs an action of the administrator.
    NeedsAction(String),
}

impl StepError {
    pub fn text(&self) -> &str {
        let (Self::Failed(text) | Self::NeedsAction(text)) = self;
        text
    }
}

impl From<ModeError> for StepError {
    fn from(error: ModeError) -> Self {
        match error {
            ModeError::NeedsAction(text) => Self::NeedsAction(text),
            other => Self::Failed(other.to_string()),
        }
    }
}

/// [`PROFILE`]. Only GPUs that are present count: for others there is nothing to wait for.
/// `restoring`: those whose mode is being set up again.
pub fn condition(
    layout: &StoredLayout,
    present: &BTreeSet<GpuUuid>,
    restoring: &BTreeSet<GpuUuid>,
    error: Option<&DesiredLayoutError>,
    users_by_gpu: &BTreeMap<GpuUuid, DeviceUsers>,
    failures: &BTreeMap<GpuUuid, StepError>,
) -> NodeCondition {
    let profile = layout.profile.as_deref();
    let (reason, lines) = if let Some(error) = error {
        let unchanged =
            profile.map(|good| format!("the last valid profile stays in effect: {good}"));
        let lines = error.text.lines().map(str::to_owned).chain(unchanged);
        (error.reason, lines.collect())
    } else {
        let gpus = layout
            .gpus
            .iter()
            .filter(|(uuid, _)| present.contains(*uuid));
        let unchanged: Vec<String> = gpus.clone().filter_map(late).collect();
        let changing = gpus.filter_map(|(uuid, gpu)| {
            let what = cordon(gpu, restoring.contains(uuid))?;
            let why = reason_to_wait(gpu, users_by_gpu.get(uuid), failures.get(uuid));
            Some(format!("{uuid} {what}{why}"))
        });
        let changing: Vec<String> = changing.collect();
        if !changing.is_empty() {
            ("Changing", [changing, unchanged].concat())
        } else if !unchanged.is_empty() {
            ("GivenUp", unchanged)
        } else if let Some(profile) = profile {
            return NodeCondition::new(true, "Applied", format!("profile {profile}"));
        } else {
            ("Unknown", vec!["no profile has been read yet".to_owned()])
        }
    };
    let mut message = lines.join("; ");
    if let Some((end, _)) = message.char_indices().nth(LONGEST) {
        message.truncate(end);
    }
    NodeCondition::new(false, reason, message)
}

pub fn note(node: &str, condition: &NodeCondition) -> EventNote {
    EventNote {
        pod: PodRef::node(node),
        warning: !condition.holds,
        reason: if condition.holds {
            "ProfileApplied"
        } else {
            "ProfileNotApplied"
        },
        action: "Sharing",
        text: format!("{}: {}", condition.reason, condition.message),
    }
}

/// Why that is not done yet.
fn reason_to_wait(
    gpu: &GpuState,
    users: Option<&DeviceUsers>,
    failure: Option<&StepError>,
) -> String {
    let drains = gpu.step() == Some(ChangeStep::Draining) && !gpu.is_late();
    match (failure, users) {
        (Some(StepError::Failed(why)), _) => format!(", which failed and will be retried: {why}"),
        (Some(StepError::NeedsAction(why)), _) => format!(" and needs an action: {why}"),
        (None, Some(users)) if drains && !users.is_empty() => {
            let pods = users.pods.iter().map(|pod| pod.full_name());
            let mut who: Vec<String> = pods.take(8).collect();
            let more = users.pods.len() - who.len() + users.others;
            if more > 0 {
                who.push(format!("{more} more"));
            }
            format!(" and waits for these pods to end: {}", who.join(", "))
        }
        _ => String::new(),
    }
}

fn late((uuid, gpu): (&GpuUuid, &GpuState)) -> Option<String> {
    let change = gpu.change.as_ref().filter(|change| change.late)?;
    let mode = gpu.mode.as_ref().map_or("nothing", Mode::name);
    let to = change.to.name();
    Some(format!(
        "{uuid} stays {mode} instead of changing to {to}: it was still in use when the timeout expired"
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::layout::transition::tests::{exclusive, late, on, to, vgpu};
    use crate::testing::pod;

    /// Checks the condition of a node whose `GPU-a` is in this state, with pod `p` on it.
    fn check(gpu: GpuState, error: Option<&str>, failure: Option<StepError>, expected: [&str; 3]) {
        check_restoring(false, gpu, error, failure, expected);
    }

    fn check_restoring(
        restoring: bool,
        gpu: GpuState,
        error: Option<&str>,
        failure: Option<StepError>,
        expected: [&str; 3],
    ) {
        let mut layout = StoredLayout {
            profile: Some("lab".to_owned()),
            ..StoredLayout::default()
        };
        layout.gpus.insert("GPU-a".into(), gpu);
        let users = DeviceUsers {
            pods: vec![Arc::new(pod("p"))],
            ..DeviceUsers::default()
        };
        let error = error.map(|text| DesiredLayoutError {
            reason: "ProfileUnknown",
            text: text.to_owned(),
        });
        let users_by_gpu = [("GPU-a".into(), users)].into();
        let failures = failure.map(|why| ("GPU-a".into(), why));
        let failures = failures.into_iter().collect();
        // A GPU that was removed in the middle of its change is not waited for.
        let away = to(vgpu(2), exclusive(), ChangeStep::Leaving, 0);
        layout.gpus.insert("GPU-away".into(), away);
        let present = ["GPU-a".into()].into();
        let restoring = restoring.then(|| "GPU-a".into()).into_iter().collect();
        let found = condition(
            &layout,
            &present,
            &restoring,
            error.as_ref(),
            &users_by_gpu,
            &failures,
        );
        let found = [found.status(), found.reason, found.message.as_str()];
        assert_eq!(found, expected);
    }

    #[test]
    fn condition_explains_why_profile_is_not_applied() {
        let present = || on(vgpu(2));
        let changing = |step| to(vgpu(2), exclusive(), step, 0);
        let change = "GPU-a changes from vgpu to exclusive";
        let stays = "GPU-a stays vgpu instead of changing to exclusive";
        let failed = Some(StepError::Failed("no".to_owned()));
        let reset = Some(StepError::NeedsAction("reset it".to_owned()));
        let check_change = |gpu, failure, reason, message: &str| {
            check(gpu, None, failure, ["False", reason, message]);
        };
        let drains = format!("{change} and waits for these pods to end: default/p");
        check_change(changing(ChangeStep::Draining), None, "Changing", &drains);
        let fails = format!("{change}, which failed and will be retried: no");
        let enters = changing(ChangeStep::Entering);
        check_change(enters, failed.clone(), "Changing", &fails);
        let waits = format!("{change} and needs an action: reset it");
        check_change(changing(ChangeStep::Entering), reset, "Changing", &waits);
        let gives_up = format!("{stays}: it was still in use when the timeout expired");
        let gpu = late(vgpu(2), exclusive(), 0);
        check_change(gpu, None, "GivenUp", &gives_up);
        let restores = "GPU-a is being set up as vgpu, which failed and will be retried: no";
        let restores = ["False", "Changing", restores];
        check_restoring(true, present(), None, failed, restores);
        let applied = ["True", "Applied", "profile lab"];
        check(present(), None, None, applied);
        let message = "\"x\" is not a profile; the last valid profile stays in effect: lab";
        let error = Some("\"x\" is not a profile");
        check(present(), error, None, ["False", "ProfileUnknown", message]);
    }
}
