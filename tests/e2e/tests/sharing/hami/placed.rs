//! HAMI-14: which GPU a pod gets, and what it has of each of several.

use std::sync::Arc;

use aliquot_e2e::clients::{answers, with_python};
use aliquot_e2e::pods::simple;
use aliquot_e2e::stack::Stack;
use anyhow::{Result, ensure};

use super::world::{A100, annotated, over, run, uuid};

const POLICY: &str = "hami.io/gpu-scheduler-policy";
const USE_TYPE: &str = "nvidia.com/use-gputype";
/// The two alike.
const ALIKE: &str = "A100-SXM4-80GB";

pub(crate) async fn by_policy(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("placed").await?;
    let gpus = [uuid(stack, 0)?, uuid(stack, 1)?];
    let share = |name: &str| {
        let limits = [("gpu", "1"), ("gpumem", "3000"), ("gpucores", "10")];
        annotated(simple("placed", name, &limits), USE_TYPE, ALIKE)
    };
    // The second GPU is the fuller one from now on.
    let first = annotated(share("first"), "nvidia.com/use-gpuuuid", &gpus[1]);
    run(stack, first).await?;
    for (name, policy, gpu) in [("packed", "binpack", 1), ("spread", "spread", 0)] {
        let found = run(stack, annotated(share(name), POLICY, policy)).await?;
        let got: Vec<_> = found.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        ensure!(got == [gpus[gpu].as_str()], "{name}: {found:?}");
    }
    // The same of each GPU, in MiB or in percent, whatever is on it.
    for (name, memory, mib) in [
        ("in-mib", ("gpumem", "4000"), 4000),
        ("in-percent", ("gpumem-percentage", "10"), A100 / 10),
    ] {
        let limits = [("gpu", "2"), memory, ("gpucores", "25")];
        let pod = with_python(stack, "placed", name, &limits)?;
        let found = run(stack, annotated(pod, USE_TYPE, ALIKE)).await?;
        ensure!(found.shares() == [(mib, 25); 2], "{name}: {found:?}");
        let mut got: Vec<_> = found.gpus.into_iter().map(|gpu| gpu.uuid).collect();
        got.sort();
        let mut both = gpus.to_vec();
        both.sort();
        ensure!(got == both, "{name}: {got:?}");
        let commands = ["ninit", "ncount", "nmemory,0", "nmemory,1"];
        let output = answers(stack, "placed", name, &commands).await?;
        let expected = [
            "ncount: 0 2".to_owned(),
            format!("nmemory,0: [0, 0] 0 {mib}"),
            format!("nmemory,1: [0, 0] 0 {mib}"),
        ];
        ensure!(output[1..] == expected, "{name}: {output:?}");
    }
    over(stack, "placed").await
}
