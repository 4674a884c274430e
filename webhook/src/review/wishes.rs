//! Step 1 for wishes: annotations that choose cards and policies must be ones
//! that the scheduler understands.
//!
//! Fed by: the pod's annotations, as they came. Must not: know their values;
//! that is `aliquot_core::wishes`, which the scheduler reads them with too.

use aliquot_core::Wishes;
use serde_json::Value;

use super::Refusal;

pub(super) fn refusals(pod: &Value) -> Vec<Refusal> {
    let annotations = &pod["metadata"]["annotations"];
    let faults = Wishes::read(|key| annotations[key].as_str()).err();
    let refusal = |fault: aliquot_core::wishes::WishError| Refusal {
        field: format!("metadata.annotations[{:?}]", fault.key),
        message: fault.why,
    };
    let faults = faults.into_iter().flatten();
    faults.map(refusal).collect()
}
