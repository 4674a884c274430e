//! With NVIDIA's real container runtime as containerd's default one, installed as GPU Operator does
//! it. Its mode is `cdi`, in which it injects whatever `NVIDIA_VISIBLE_DEVICES` names.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aliquot_cluster::Member;
use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::clients::{answers, nvidia_spec, with_python};
use aliquot_e2e::stack::Stack;
use anyhow::{Result, ensure};
use serde_json::json;
use tokio::process::Command;

use crate::by_env::with_program;
use crate::limits::{limited, unlimited};
use crate::running::PATIENCE;

const SPACE: &str = "limits";
/// Its pods are not reviewed.
const EXEMPT: &str = "limits-exempt";
const PROGRAM: &str = "nvidia-container-runtime";

pub(crate) async fn default_one(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    limited(stack, &nvidia_spec(stack)?).await?;
    let path = stack.cluster.containerd_config();
    let plain = std::fs::read_to_string(&path)?;
    let program = installed(stack).await?;
    std::fs::write(&path, with_program(&plain, &program)?)?;
    restart_containerd(stack).await?;
    let outcome = limits_hold(stack).await;
    std::fs::write(&path, plain)?;
    restart_containerd(stack).await?;
    outcome?;
    stack.cluster.delete_pod(EXEMPT, "bypass").await?;
    unlimited(stack, &["share"]).await
}

/// Installs the runtime beside the simulated machine, and its configuration beside it.
async fn installed(stack: &Stack) -> Result<PathBuf> {
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../toolkit/build.sh");
    let output = Command::new(build).output().await?;
    ensure!(output.status.success(), "{output:?}");
    let toolkit = String::from_utf8(output.stdout)?;
    let folder = stack.machine().state().with_file_name("toolkit");
    let configuration = folder.join(".config");
    std::fs::create_dir_all(configuration.join("nvidia-container-runtime"))?;
    let specs = stack.cluster.cdi_dir();
    std::fs::write(
        configuration.join("nvidia-container-runtime/config.toml"),
        format!(
            "[nvidia-container-runtime]\nmode = \"cdi\"\nruntimes = [\"runc\"]\n\
             [nvidia-container-runtime.modes.cdi]\nspec-dirs = [{:?}]\n",
            specs.display().to_string()
        ),
    )?;
    let program = folder.join(PROGRAM);
    std::fs::write(
        &program,
        format!(
            "#!/bin/sh\nXDG_CONFIG_HOME={} exec {}/newest/{PROGRAM} \"$@\"\n",
            configuration.display(),
            toolkit.trim()
        ),
    )?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    Ok(program)
}

async fn restart_containerd(stack: &Stack) -> Result<()> {
    stack.cluster.kill_member(Member::Containerd).await?;
    stack.cluster.ensure_member(Member::Containerd)?;
    eventually(PATIENCE, "containerd to answer", || async {
        let answers = stack.cluster.listens(Member::Containerd).await;
        Ok(answers.then_some(()))
    })
    .await
}

async fn limits_hold(stack: &Stack) -> Result<()> {
    let limits = [("gpu", "1"), ("gpumem", "3000")];
    let share = with_python(stack, SPACE, "share", &limits)?;
    // It has no share, and reaches the runtime past the webhook.
    stack.cluster.exempt_namespace(EXEMPT).await?;
    let mut bypass = with_python(stack, EXEMPT, "bypass", &[])?;
    let all = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]);
    bypass["spec"]["containers"][0]["env"] = all;
    for pod in [share, bypass] {
        stack.cluster.create_pod(pod).await?;
    }
    stack.cluster.wait_running(SPACE, "share").await?;
    let commands = ["init", "alloc,2490", "alloc,2488", "info"];
    let output = answers(stack, SPACE, "share", &commands).await?;
    let expected = [
        "init: 0",
        "alloc,2490: 2",
        "alloc,2488: 0",
        "info: 0 0 3000",
    ];
    ensure!(output == expected, "{output:?}");
    eventually(
        PATIENCE,
        "NVIDIA's runtime to look for all GPUs",
        || async {
            let events = stack.event_texts(EXEMPT, "bypass").await?;
            let unresolvable = "unresolvable CDI devices nvidia.com/gpu=all";
            let found = events.iter().any(|event| event.contains(unresolvable));
            until!(found, "{events:?}");
            Ok(Some(()))
        },
    )
    .await
}
