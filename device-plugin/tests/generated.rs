//! Holds the checked-in protocol code to its `.proto` text: generates it anew,
//! in memory and without a system protoc, and compares. With
//! `UPDATE_GENERATED=1` it writes the files instead. Must not need the network.

use std::path::Path;

use anyhow::Context as _;

fn check(proto: &str, package: &str) -> anyhow::Result<()> {
    let room = Path::new(env!("CARGO_MANIFEST_DIR"));
    let descriptors = protox::compile([room.join("proto").join(proto)], [room.join("proto")])?;
    let out = tempfile::tempdir()?;
    tonic_prost_build::configure()
        .out_dir(out.path())
        .compile_fds(descriptors)
        .with_context(|| format!("generate {proto}"))?;
    let file = format!("{package}.rs");
    let fresh = std::fs::read_to_string(out.path().join(&file))?;
    let kept_at = room.join("src/generated").join(&file);
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::write(&kept_at, &fresh)?;
    }
    let kept =
        std::fs::read_to_string(&kept_at).with_context(|| format!("read {}", kept_at.display()))?;
    assert!(
        kept == fresh,
        "{} is not what {proto} generates; run with UPDATE_GENERATED=1 and check the result in",
        kept_at.display()
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
