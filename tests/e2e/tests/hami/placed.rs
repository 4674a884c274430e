//! HAMI-14: which card a pod gets, and what it has of each of several.
//!
//! Fed by: `main`. Must not: pin a pod whose policy is looked at.

use std::sync::Arc;

use aliquot_e2e::clients::{answers, with_python};
use aliquot_e2e::pods::simple;
use aliquot_e2e::stack::Stack;
use anyhow::{Result, ensure};

use crate::world::{A100, annotated, over, run, uuid};

const POLICY: &str = "hami.io/gpu-scheduler-policy";
const USE_TYPE: &str = "nvidia.com/use-gputype";
/// The two alike.
const ALIKE: &str = "A100-SXM4-80GB";

pub(crate) async fn by_policy(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("placed").await?;
    let cards = [uuid(stack, 0)?, uuid(stack, 1)?];
    let share = |name: &str| {
        let limits = [("gpu", "1"), ("gpumem", "3000"), ("gpucores", "10")];
        annotated(simple("placed", name, &limits), USE_TYPE, ALIKE)
    };
    // The second card is the fuller one from now on.
    let first = annotated(share("first"), "nvidia.com/use-gpuuuid", &cards[1]);
    run(stack, first).await?;
    for (name, policy, card) in [("packed", "binpack", 1), ("spread", "spread", 0)] {
        let found = run(stack, annotated(share(name), POLICY, policy)).await?;
        let got: Vec<_> = found.cards.iter().map(|card| card.uuid.as_str()).collect();
        ensure!(got == [cards[card].as_str()], "{name}: {found:?}");
    }
    // The same of each card, in MiB or in percent, whatever is on it.
    for (name, memory, mib) in [
        ("in-mib", ("gpumem", "4000"), 4000),
        ("in-percent", ("gpumem-percentage", "10"), A100 / 10),
    ] {
        let limits = [("gpu", "2"), memory, ("gpucores", "25")];
        let pod = with_python(stack, "placed", name, &limits)?;
        let found = run(stack, annotated(pod, USE_TYPE, ALIKE)).await?;
        ensure!(found.shares() == [(mib, 25); 2], "{name}: {found:?}");
        let mut got: Vec<_> = found.cards.into_iter().map(|card| card.uuid).collect();
        got.sort();
        let mut both = cards.to_vec();
        both.sort();
        ensure!(got == both, "{name}: {got:?}");
        let commands = ["ninit", "ncount", "nmemory,0", "nmemory,1"];
        let said = answers(stack, "placed", name, &commands).await?;
        let expected = [
            "ncount: 0 2".to_owned(),
            format!("nmemory,0: [0, 0] 0 {mib}"),
            format!("nmemory,1: [0, 0] 0 {mib}"),
        ];
        ensure!(said[1..] == expected, "{name}: {said:?}");
    }
    over(stack, "placed").await
}
