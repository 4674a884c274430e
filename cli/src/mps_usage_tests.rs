//! Agents' metrics as they are read and printed, and agents that do not answer.

use super::*;
use crate::agents::parse_agent;
use crate::top::{PodTop, add_to_pods, mps_by_gpu, mps_by_pod};

const METRICS: &str = r#"
# TYPE aliquot_device_plugin_mps_clients gauge
aliquot_device_plugin_mps_clients{gpu="GPU-a",namespace="d",pod="p",container="main"} 2
aliquot_device_plugin_mps_clients{gpu="GPU-a",namespace="d",pod="p",container="side"} 1
aliquot_device_plugin_mps_clients{gpu="MIG-b",namespace="e",pod="q",container="main"} 1
aliquot_device_plugin_mps_used_bytes{gpu="GPU-a",namespace="d",pod="p",container="main"} 2147483648
aliquot_device_plugin_mps_used_bytes{gpu="GPU-a",namespace="d",pod="p",container="side"} 1048576
aliquot_device_plugin_mps_daemon_up{gpu="GPU-a"} 1
aliquot_device_plugin_accepted 4
"#;

fn pod(namespace: &str, name: &str) -> PodTop {
    PodTop {
        uncontrolled: Vec::new(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        node: "n".into(),
        gpus: None,
        limits: BTreeMap::new(),
        owner: None,
        usage: BTreeMap::new(),
        mps: BTreeMap::new(),
    }
}

#[test]
fn mps_14_shows_clients_and_memory_by_device_and_pod() {
    let all = read(&"n".into(), METRICS);
    assert_eq!(
        mps_by_gpu(&all),
        "\nNODE  UUID   MPS CLIENTS  HOLD MIB\n\
         n     GPU-a  3            2049\n\
         n     MIG-b  1            0\n"
    );
    let mut some = [pod("d", "p"), pod("d", "q"), pod("e", "q")];
    add_to_pods(&mut some, &all);
    assert_eq!(
        mps_by_pod(&some, true),
        "\nNAMESPACE  POD  GPU    MPS CLIENTS  HOLD MIB\n\
         d          p    GPU-a  3            2049\n\
         e          q    MIG-b  1            0\n"
    );
    let one = mps_by_pod(&some[..1], false);
    assert_eq!(
        one,
        "\nPOD  GPU    MPS CLIENTS  HOLD MIB\np    GPU-a  3            2049\n"
    );
    assert_eq!(mps_by_gpu(&[]), "");
}

#[tokio::test]
async fn mps_14_reports_agent_that_does_not_answer() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("n=http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let agents = Agents {
        agents: vec![parse_agent(&url).unwrap()],
        ..Agents::default()
    };
    let nodes = BTreeSet::from(["n".into()]);
    let found = measure(&agents, &Access::default(), &nodes).await;
    assert!(found.all.is_empty());
    assert!(found.missing[0].starts_with("n: cannot reach"), "{found:?}");
    assert!(parse_agent("http").is_err());
}
