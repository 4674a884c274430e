//! `examples/limits.c`, and an image in which it runs: a user space and a C library, as images of
//! distributions have.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use aliquot_cluster::Cluster;
use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

/// The image, on the nodes of [`import_image`].
pub const IMAGE: &str = "localhost/glibc:1";
/// Its source.
pub const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/limits.c");
/// Where Debian puts the static busybox.
const BUSYBOX: &str = "/bin/busybox";
/// Libraries beside libc that NVIDIA's driver was linked with.
const BESIDE_LIBC: [&str; 4] = ["libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"];

/// Compiles the program as its first lines describe.
pub async fn compile(to: &Path) -> Result<()> {
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-o"]).arg(to).args([SOURCE, "-ldl"]);
    let made = compiler.status().await.context("run cc")?;
    ensure!(made.success(), "cc: {made}");
    Ok(())
}

/// Share and measured compute in percent, as the program printed them.
pub fn compute(printed: &str) -> Result<(f64, f64)> {
    let line = printed.lines().find_map(|line| {
        let (share, got) = line
            .strip_prefix("compute: share ")?
            .split_once(" %; got ")?;
        Some((share.parse().ok()?, got.split(' ').next()?.parse().ok()?))
    });
    line.with_context(|| format!("no line about compute: {printed}"))
}

/// Hands the node an image of this name, of busybox and this machine's C library.
pub async fn import_image(cluster: &Cluster, name: &str) -> Result<()> {
    // Linked like libvgpu.so and the simulated driver.
    let program = std::env::current_exe()?;
    let output = Command::new("ldd").arg(&program).output().await?;
    let text = String::from_utf8(output.stdout)?;
    let paths = text.split_whitespace().filter(|word| word.starts_with('/'));
    let mut libraries: BTreeSet<PathBuf> = paths.map(PathBuf::from).collect();
    let libc = libraries.iter().find(|path| path.ends_with("libc.so.6"));
    let libc = libc.with_context(|| format!("ldd {}: {text}", program.display()))?;
    libraries.extend(BESIDE_LIBC.map(|name| libc.with_file_name(name)));
    let libraries: Vec<String> = libraries
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    // `kubectl cp` calls tar.
    let tools = ["/bin/sh", "/bin/tar", "/bin/env"].map(|to| (Path::new(BUSYBOX), to));
    let libraries = libraries
        .iter()
        .map(|path| (Path::new(path), path.as_str()));
    let files: Vec<_> = tools.into_iter().chain(libraries).collect();
    cluster.import_image(name, "/bin/sh", &files).await
}
