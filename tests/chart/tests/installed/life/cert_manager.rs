//! Certificates of cert-manager, whose controller runs beside the cluster: the webhook's, as the chart
//! requests it, and those of the extender and of a kube-scheduler outside the chart.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aliquot_chart::release::{script, success};
use aliquot_chart::{NAMESPACE, top};
use aliquot_cluster::wait::{OrNotYet as _, eventually};
use aliquot_cluster::{Cluster, Part, not_yet, until};
use aliquot_webhook::configuration::{NAME, published_bundle};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::{Value, json};

use super::external::places_example;
use super::world::{PATIENCE, World};
use super::{applied, installed, kubectl, removed};
use crate::ChartCluster;

/// The chart's Secrets.
const CA: &str = "aliquot-webhook-ca";
const SERVING: &str = "aliquot-webhook-serving";
/// The administrator's.
const EXTENDER: &str = "extender";
const CLIENT: &str = "kube-scheduler";
/// The webhook publishes a new CA for a minute before it serves a certificate of it.
const SERVED: Duration = Duration::from_mins(5);

pub(crate) async fn renews(chart: Arc<ChartCluster>) -> Result<()> {
    let cluster = &chart.cluster;
    let world = Box::pin(World::on(cluster.clone())).await?;
    let (controller, definitions) = started(cluster).await?;
    let done = Box::pin(walk(&world)).await;
    // Later scenarios and the removal need it as it was.
    cluster.restart_scheduler_with(&[]).await?;
    let log = controller.log_tail();
    world.reported(done.context(log)).await?;
    Box::pin(removed(&world)).await?;
    // What stays, as docs/guides/upgrade.md says.
    for secret in [CA, SERVING] {
        kubectl(&world, &format!("get secret {secret} -n {NAMESPACE}")).await?;
    }
    let delete = ["delete", "-f", &definitions];
    cluster.kubectl(&delete).await?.success()?;
    controller.kill().await
}

/// Installs the custom resource definitions and starts the controller; the folder of the definitions.
async fn started(cluster: &Cluster) -> Result<(Part, String)> {
    let program = success(&mut script("tests/cluster/cert-manager.sh", &[])?)?;
    let program = Path::new(program.trim());
    let definitions = program.with_file_name("crds");
    let definitions = definitions.to_string_lossy().into_owned();
    let apply = ["apply", "--server-side", "-f", &definitions];
    cluster.kubectl(&apply).await?.success()?;
    cluster.wait_established().await?;
    let kubeconfig = format!("--kubeconfig={}", cluster.kubeconfig().display());
    let controller = cluster.start_part("cert-manager", program, &[&kubeconfig], &[])?;
    Ok((controller, definitions))
}

async fn walk(world: &World) -> Result<()> {
    let service = format!("aliquot-extender.{NAMESPACE}.svc");
    applied(world, &certificates(&service)).await?;
    let client = issued(world, CLIENT).await?;
    let extender = issued(world, EXTENDER).await?;
    // kube-scheduler keeps its own.
    let folder = world.cluster.state_dir().join("cert-manager");
    std::fs::create_dir_all(&folder)?;
    for (name, text) in [
        ("tls.crt", &client.certificate),
        ("tls.key", &client.key),
        ("ca.crt", &client.authority),
    ] {
        std::fs::write(folder.join(name), text)?;
    }

    let values = [
        "--set=webhook.certManager.enabled=true",
        "--set=scheduler.kubeScheduler.enabled=false,scheduler.replicas=1",
        "--set=scheduler.extender.tlsSecret=extender",
    ];
    installed(world, &values).await?;
    let serving = issued(world, SERVING).await?;
    let bundle = published(world).await?;
    ensure!(bundle.trim() == serving.authority.trim(), "{bundle}");
    eventually(PATIENCE, "the first pod to be admitted", || async {
        admitted(world).await.or_not_yet().map(Some)
    })
    .await?;
    Box::pin(both_serve(world, &folder, &serving, &extender)).await?;
    Box::pin(places_example(world, &folder, &service)).await?;

    // The CA first, which signs the webhook's next certificate.
    let ca = issued(world, CA).await?;
    let ca = renewed(world, CA, &ca).await?;
    let serving = renewed(world, SERVING, &serving).await?;
    let extender = renewed(world, EXTENDER, &extender).await?;
    ensure!(serving.authority == ca.certificate, "{}", serving.authority);
    Box::pin(both_serve(world, &folder, &serving, &extender)).await?;
    let bundle = published(world).await?;
    ensure!(bundle.contains(serving.authority.trim()), "{bundle}");
    // Its kube-scheduler connects anew.
    Box::pin(places_example(world, &folder, &service)).await
}

/// A CA, and what it signs for the extender and its kube-scheduler.
fn certificates(service: &str) -> Value {
    let object = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "cert-manager.io/v1", "kind": kind,
            "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec,
        })
    };
    let issuer = |name: &str| json!({"name": name, "kind": "Issuer"});
    json!({"apiVersion": "v1", "kind": "List", "items": [
        object("Issuer", "extender-self", json!({"selfSigned": {}})),
        object("Certificate", "extender-ca", json!({
            "secretName": "extender-ca", "isCA": true, "commonName": "extender-ca",
            "issuerRef": issuer("extender-self"),
        })),
        object("Issuer", "extender", json!({"ca": {"secretName": "extender-ca"}})),
        object("Certificate", EXTENDER, json!({
            "secretName": EXTENDER, "dnsNames": [service], "usages": ["server auth"],
            "issuerRef": issuer("extender"),
        })),
        object("Certificate", CLIENT, json!({
            "secretName": CLIENT, "commonName": CLIENT, "usages": ["client auth"],
            "issuerRef": issuer("extender"),
        })),
    ]})
}

/// A Secret of cert-manager, in PEM.
#[derive(Default, PartialEq)]
struct Issued {
    certificate: String,
    key: String,
    authority: String,
}

/// Waits until cert-manager has written this Secret.
async fn issued(world: &World, secret: &str) -> Result<Issued> {
    another(world, secret, &Issued::default()).await
}

/// Deletes the Secret, which has cert-manager issue it anew.
async fn renewed(world: &World, secret: &str, old: &Issued) -> Result<Issued> {
    kubectl(world, &format!("delete secret {secret} -n {NAMESPACE}")).await?;
    another(world, secret, old).await
}

async fn another(world: &World, secret: &str, old: &Issued) -> Result<Issued> {
    let secrets: Api<Secret> = Api::namespaced(world.cluster.admin()?, NAMESPACE);
    let what = format!("cert-manager to write Secret {secret}");
    eventually(PATIENCE, &what, || async {
        let Some(found) = secrets.get_opt(secret).await? else {
            not_yet!("no Secret");
        };
        let mut data = found.data.unwrap_or_default();
        let mut text = |key: &str| String::from_utf8(data.remove(key).unwrap_or_default().0);
        let issued = Issued {
            certificate: text("tls.crt")?,
            key: text("tls.key")?,
            authority: text("ca.crt")?,
        };
        until!(issued != *old, "the same as before");
        Ok(Some(issued))
    })
    .await
}

/// The CAs that the API server trusts of the webhook.
async fn published(world: &World) -> Result<String> {
    let live = ["get", "mutatingwebhookconfiguration", NAME];
    Ok(published_bundle(&world.json(&live).await?))
}

/// The API server creates this pod only with the webhook's answer, whose certificate it verifies.
async fn admitted(world: &World) -> Result<()> {
    let example = top("examples/gpu-pod.yaml");
    let example = example.to_string_lossy();
    let create = ["create", "--dry-run=server", "-f", &*example];
    let scheduler = ["-o", "jsonpath={.spec.schedulerName}"];
    let create = [&create[..], &scheduler].concat();
    let scheduler = world.cluster.kubectl(&create).await?.success()?;
    ensure!(scheduler == "aliquot-scheduler", "{scheduler:?}");
    Ok(())
}

/// Waits until every pod of the two serves this certificate and no other; pods are admitted all the time.
async fn both_serve(
    world: &World,
    folder: &Path,
    serving: &Issued,
    extender: &Issued,
) -> Result<()> {
    for (part, port, service, issued) in [
        ("webhook", 8443, "aliquot-webhook", serving),
        ("scheduler", 9397, "aliquot-extender", extender),
    ] {
        // kubectl trusts only the certificate itself.
        std::fs::write(folder.join("trusted.crt"), &issued.certificate)?;
        let files = folder.display();
        let label = format!("app.kubernetes.io/component={part}");
        let pods = ["get", "pods", "-n", NAMESPACE, "-l", &label];
        let pods = world.json(&pods).await?;
        for pod in pods["items"].as_array().context("no list")? {
            let address = pod["status"]["podIP"].as_str().context("no address")?;
            let flags = [
                "--kubeconfig=/dev/null".to_owned(),
                format!("--server=https://{address}:{port}"),
                format!("--tls-server-name={service}.{NAMESPACE}.svc"),
                format!("--certificate-authority={files}/trusted.crt"),
                // The webhook asks for none.
                format!("--client-certificate={files}/tls.crt"),
                format!("--client-key={files}/tls.key"),
            ];
            let mut asks: Vec<&str> = flags.iter().map(String::as_str).collect();
            asks.extend(["get", "--raw", "/readyz"]);
            let what = format!("the {part} to serve its certificate at {address}");
            eventually(SERVED, &what, || async {
                admitted(world).await?;
                let answer = world.cluster.kubectl(&asks).await?;
                answer.success().or_not_yet().map(Some)
            })
            .await?;
        }
    }
    Ok(())
}
