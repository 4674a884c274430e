//! The libraries that the image itself preloads are loaded after ours,
//! under either runtime.

use std::path::Path;
use std::sync::Arc;

use aliquot_e2e::clients::{answers, nvidia_spec, with_python};
use aliquot_e2e::stack::Stack;
use anyhow::{Result, ensure};
use serde_json::json;
use tokio::process::Command;

use crate::limits::{in_users, limited, runtime_of_users, unlimited};

const IMAGE: &str = "localhost/preloads:1";
const OURS: &str = "/.aliquot/lib/libvgpu.so\n";
const LIBRARY: &str = "/mark/libmark.so";
const NAMESPACE: &str = "limits";
pub(crate) async fn merged(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    limited(stack, &nvidia_spec(stack)?).await?;
    runtime_of_users(stack).await?;
    let folder = tempfile::tempdir()?;
    image(stack, folder.path()).await?;
    let theirs = format!("{OURS}{LIBRARY}\n");
    let pods = [
        ("plain", OURS),
        ("brings", &theirs),
        ("brings-users", &theirs),
    ];
    for (name, list) in pods {
        let limits = [("gpu", "1"), ("gpumem", "3000")];
        let mut pod = with_python(stack, NAMESPACE, name, &limits)?;
        if list != OURS {
            // It has no program of its own.
            let container = &mut pod["spec"]["containers"][0];
            container["image"] = json!(IMAGE);
            container["env"] = json!([{"name": "PATH", "value": "/usr/bin"}]);
        }
        if name == "brings-users" {
            in_users(&mut pod);
        }
        stack.cluster.create_pod(pod).await?;
    }
    for (name, list) in pods {
        stack.cluster.wait_running(NAMESPACE, name).await?;
        let read = ["/usr/bin/cat", "/etc/ld.so.preload", "/proc/self/maps"];
        let output = stack.cluster.exec(NAMESPACE, name, "main", &read).await?;
        let output = output.success()?;
        ensure!(output.starts_with(list), "{name}: {output}");
        // A program of the host's that the loader knows, with both in it.
        ensure!(
            output.contains(" /.aliquot/lib/libvgpu.so"),
            "{name}: {output}"
        );
        let marked = output.contains(&format!(" {LIBRARY}"));
        ensure!(marked == (list != OURS), "{name}: {output}");
        let commands = ["init", "alloc,2490", "alloc,2488", "info"];
        let output = answers(stack, NAMESPACE, name, &commands).await?;
        let expected = [
            "init: 0",
            "alloc,2490: 2",
            "alloc,2488: 0",
            "info: 0 0 3000",
        ];
        ensure!(output == expected, "{name}: {output:?}");
    }
    unlimited(stack, &pods.map(|(name, _)| name)).await
}

/// An image with a library that its own list names.
async fn image(stack: &Stack, folder: &Path) -> Result<()> {
    let [source, library, list] = ["mark.c", "libmark.so", "list"].map(|name| folder.join(name));
    std::fs::write(&source, "int mark(void) { return 1; }\n")?;
    let mut compiler = Command::new("cc");
    let made = compiler.args(["-shared", "-fPIC", "-o"]);
    let made = made.arg(&library).arg(&source).status().await?;
    ensure!(made.success(), "cc: {made}");
    std::fs::write(&list, format!("{LIBRARY}\n"))?;
    let files = [(library.as_path(), LIBRARY), (&list, "/etc/ld.so.preload")];
    stack.cluster.import_image(IMAGE, "/bin/sh", &files).await
}
