//! Compares the checked-in protocol code with its `.proto` text: generates it again in memory,
//! without a system protoc and without the network. With `UPDATE_GENERATED=1` it writes the files
//! instead.

use std::path::Path;

use anyhow::Context as _;

fn check(proto: &str, package: &str) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let descriptors = protox::compile([root.join("proto").join(proto)], [root.join("proto")])?;
    let out = tempfile::tempdir()?;
    tonic_prost_build::configure()
        .out_dir(out.path())
        .compile_fds(descriptors)
        .with_context(|| format!("generate {proto}"))?;
    let file = format!("{package}.rs");
    let generated = std::fs::read_to_string(out.path().join(&file))?;
    let stored_at = root.join("src/generated").join(&file);
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::write(&stored_at, &generated)?;
    }
    let stored = std::fs::read_to_string(&stored_at)
        .with_context(|| format!("read {}", stored_at.display()))?;
    assert!(
        stored == generated,
        "{} differs from what {proto} generates; run this test with UPDATE_GENERATED=1 and commit the result",
        stored_at.display()
    );
    Ok(())
}

#[test]
fn device_plugin_code_is_what_its_proto_generates() -> anyhow::Result<()> {
    check("deviceplugin.proto", "v1beta1")
}

#[test]
fn pod_resources_code_is_what_its_proto_generates() -> anyhow::Result<()> {
    check("podresources.proto", "v1")
}
