//! Without CDI: the environment configures the container runtime, and the limits are enforced.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use aliquot_e2e::clients::{answers, nvidia_spec_without_libraries, with_driver, with_python};
use aliquot_e2e::pods::allocation;
use aliquot_e2e::stack::{Kind, NodeOptions, Stack};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::limits::{limited, unlimited};

const SPACE: &str = "limits";

/// A pod whose driver comes from NVIDIA's runtime, not from us.
fn pod(stack: &Stack, name: &str, memory: &str, more: &[Value]) -> Result<Value> {
    let mut pod = with_python(stack, SPACE, name, &[("gpu", "1"), ("gpumem", memory)])?;
    with_driver(&mut pod, stack, "/driver")?;
    let machine = stack.machine().state().display().to_string();
    let mut env = vec![
        json!({"name": "LD_LIBRARY_PATH", "value": "/driver"}),
        json!({"name": "GPUSIM_STATE", "value": machine}),
    ];
    env.extend_from_slice(more);
    pod["spec"]["containers"][0]["env"] = json!(env);
    Ok(pod)
}

/// Our specs on the node.
fn specs(stack: &Stack) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(stack.cluster.cdi_dir())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        found.extend(Some(name).filter(|name| name.starts_with("aliquot.dev-vgpu_")));
    }
    Ok(found)
}

/// containerd's configuration as it is with NVIDIA's runtime as the default one.
pub(crate) fn nvidia_runtime(stack: &Stack) -> Result<PathBuf> {
    let real = std::fs::read_to_string(stack.cluster.containerd_config())?;
    let beside = |name| stack.machine().state().with_file_name(name);
    let program = beside("nvidia-container-runtime");
    std::fs::write(&program, "")?;
    let path = beside("nvidia-runtime.toml");
    let runc = "SystemdCgroup = false";
    let binary = format!("BinaryName = {:?}\n{runc}", program.display().to_string());
    let changed = real.replacen(runc, &binary, 1);
    ensure!(changed != real, "{real}");
    std::fs::write(&path, changed)?;
    Ok(path)
}

pub(crate) async fn handed_over(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    limited(stack, &nvidia_spec_without_libraries(stack)?).await?;
    let outcome = without_cdi(stack).await;
    // The scheduler may have evicted it already.
    let _gone = stack.cluster.delete_pod(SPACE, "draws").await;
    let ended = unlimited(stack, &["one", "other"]).await;
    outcome?;
    ended
}

async fn without_cdi(stack: &Stack) -> Result<()> {
    // The agent gets the configuration of a runtime with CDI off and NVIDIA's runtime.
    let path = nvidia_runtime(stack)?;
    let with_cdi = std::fs::read_to_string(&path)?;
    let off = with_cdi.replace("cdi_spec_dirs", "enable_cdi = false\ncdi_spec_dirs");
    ensure!(off != with_cdi, "{off}");
    std::fs::write(&path, off)?;
    let by_cdi = NodeOptions {
        limited: true,
        runtime: Some(path),
        ..NodeOptions::default()
    };
    let options = NodeOptions {
        flags: &["--device-list", "envvar"],
        ..by_cdi.clone()
    };
    // By default it names the setting by which containers get their GPUs here.
    stack.terminate(Kind::DevicePlugin).await?;
    stack.start_device_plugin(&by_cdi).await?;
    stack
        .wait_condition("AliquotRuntimeIncomplete", |text| {
            text.contains(" CdiOff: ") && text.contains("devicePlugin.deviceList=envvar")
        })
        .await?;
    stack.terminate(Kind::DevicePlugin).await?;
    stack.start_device_plugin(&options).await?;
    let before = specs(stack)?;

    let pods = [("one", "3000", 2488), ("other", "2000", 1488)];
    for (name, memory, _) in pods {
        stack
            .cluster
            .create_pod(pod(stack, name, memory, &[])?)
            .await?;
    }
    for (name, memory, free) in pods {
        let running = stack.cluster.wait_running(SPACE, name).await?;
        let gpu = allocation(&running)?.grants("main").context("a share")?[0]
            .gpu
            .to_string();
        let env = stack.environment(SPACE, name, "main").await?;
        for (variable, expected) in [
            ("NVIDIA_VISIBLE_DEVICES", Some(gpu.as_str())),
            ("NVIDIA_DRIVER_CAPABILITIES", Some("compute,utility")),
            ("CUDA_DEVICE_MEMORY_LIMIT_0", None),
        ] {
            let found = env.get(variable).map(String::as_str);
            ensure!(found == expected, "{name}: {variable} is {found:?}");
        }
        let (more, all) = (format!("alloc,{}", free + 2), format!("alloc,{free}"));
        let commands = ["init", "info", &more, &all];
        let output = answers(stack, SPACE, name, &commands).await?;
        let expected = [
            "init: 0".to_owned(),
            format!("info: 0 {free} {memory}"),
            format!("{more}: 2"),
            format!("{all}: 0"),
        ];
        ensure!(output == expected, "{name}: {output:?}");
    }
    let new: Vec<String> = specs(stack)?.difference(&before).cloned().collect();
    ensure!(new.is_empty(), "{new:?}");

    // The pod's own environment would win over what the agent gave the kubelet.
    let all = json!({"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"});
    let draws = pod(stack, "draws", "1000", &[all])?;
    stack.cluster.create_pod(draws).await?;
    let words = "sets NVIDIA_DRIVER_CAPABILITIES with \"all\"";
    stack.wait_event(SPACE, "draws", &[words]).await?;

    // Another agent takes the owners of replicas from the kubelet's checkpoint.
    stack.terminate(Kind::DevicePlugin).await?;
    stack.start_device_plugin(&options).await?;
    let output = answers(stack, SPACE, "one", &["init", "info"]).await?;
    ensure!(output[1] == "info: 0 2488 3000", "{output:?}");
    Ok(())
}
