//! The chart as a dependency of another chart, and values that several charts share.

use std::path::Path;

use aliquot_chart::{HelmOutput, chart, container, helm, objects, one, release};

/// Renders a chart in this folder that depends on ours, with additional arguments.
fn of_parent(folder: &Path, arguments: &[&str]) -> HelmOutput {
    let parent = folder.to_str().unwrap();
    let mut all = vec!["template", "platform", parent, "-n", "platform"];
    all.extend_from_slice(arguments);
    helm(&all).unwrap()
}

#[test]
fn parent_chart_switches_it_on_and_off_and_shares_its_globals() {
    let folder = tempfile::tempdir().unwrap();
    let version = release::version().unwrap();
    let dependency = format!(
        "apiVersion: v2\nname: platform\nversion: 1.0.0\ndependencies:\n- {{name: aliquot, version: {version}, repository: 'file://{}', condition: aliquot.enabled}}\n",
        chart()
    );
    std::fs::write(folder.path().join("Chart.yaml"), dependency).unwrap();
    let values = "global: {storageClass: fast, imageRegistry: mirror.example, imagePullSecrets: [pull]}\naliquot: {enabled: true, image: {registry: registry.example, repository: aliquot}}\n";
    std::fs::write(folder.path().join("values.yaml"), values).unwrap();
    let parent = folder.path().to_str().unwrap();
    helm(&["dependency", "build", parent])
        .unwrap()
        .success()
        .unwrap();

    let on = of_parent(folder.path(), &[]).success().unwrap();
    let on = objects(&on).unwrap();
    let scheduler = one(&on, "Deployment", "aliquot-scheduler");
    assert_eq!(scheduler.0["metadata"]["namespace"], "platform");
    assert_eq!(
        scheduler.pod().unwrap()["imagePullSecrets"][0]["name"],
        "pull"
    );
    let images = ["scheduler", "kube-scheduler"];
    let images = images.map(|name| container(scheduler, name)["image"].as_str().unwrap());
    assert_eq!(images[0], format!("mirror.example/aliquot:{version}"));
    assert!(images[1].starts_with("mirror.example/kube-scheduler:v"));

    let off = of_parent(folder.path(), &["--set=aliquot.enabled=false"]);
    assert_eq!(objects(&off.success().unwrap()).unwrap(), []);
    for set in ["--set=aliquot.enabled=true", "--set=aliquot.enabled=false"] {
        helm(&["lint", parent, set]).unwrap().success().unwrap();
    }
    // Our own keys are still checked.
    let unknown = of_parent(folder.path(), &["--set=aliquot.defaultMem=1"]);
    let refused = "additional properties 'defaultMem' not allowed";
    assert!(unknown.err.contains(refused), "{}", unknown.err);
}
