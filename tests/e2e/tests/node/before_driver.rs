//! An agent that starts before the driver is there, as at a node's boot.

use std::sync::Arc;

use aliquot_e2e::http;
use aliquot_e2e::stack::{Kind, NodeOptions, Stack};
use aliquot_gpusim::place;
use anyhow::{Result, ensure};
use hyper::Method;

const CONDITION: &str = "AliquotDriverMissing";
const MISSING: &str = "aliquot_device_plugin_driver_missing";

/// It registers nothing and reports why; when the driver appears it serves, without a restart.
pub(crate) async fn waits(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    let folder = stack.machine().state().with_file_name("driver-at-boot");
    std::fs::create_dir_all(&folder)?;
    let library = folder.join(place::LIBRARY_NAME);
    let options = NodeOptions {
        library: Some(library.clone()),
        ..NodeOptions::default()
    };
    stack.terminate(Kind::DevicePlugin).await?;
    stack.wait_capacity("0").await?;
    stack.start_device_plugin_unready(&options).await?;
    let path = library.to_string_lossy();
    stack
        .wait_condition(CONDITION, |text| {
            text.starts_with("True ") && text.contains(&*path)
        })
        .await?;
    let address = stack.address(Kind::DevicePlugin);
    let (status, reasons) = http::call(Method::GET, address, "/readyz", String::new()).await?;
    let reported = reasons
        .lines()
        .any(|reason| reason.starts_with("driver: ") && reason.contains(&*path));
    ensure!(status == 503 && reported, "{status}: {reasons}");
    http::get(address, "/healthz").await?;
    ensure!(http::metric(address, MISSING, &[]).await? > 0.5);
    stack.wait_capacity("0").await?;

    place::link_into(&folder)?;
    stack.wait_ready(Kind::DevicePlugin).await?;
    stack.wait_capacity("20").await?;
    stack
        .wait_condition(CONDITION, |text| {
            text.starts_with("False ") && text.contains("answers")
        })
        .await?;
    ensure!(http::metric(address, MISSING, &[]).await? < 0.5);
    stack.terminate(Kind::DevicePlugin).await?;
    stack.start_device_plugin(&NodeOptions::default()).await
}
