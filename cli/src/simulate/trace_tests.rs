//! Valid traces, and the errors of invalid ones.

use super::*;

const NODES: &str =
    "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,96000,393216,8,G2\n";
const PODS: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n\
                    p0,12000,16384,1,1000,\np1,6000,12288,1,460,G2|P100\np2,1000,1024,0,0,\n";

fn trace(nodes: &str, pods: &str) -> Result<Trace, TraceError> {
    let folder = tempfile::tempdir().unwrap();
    let paths = [
        folder.path().join("nodes.csv"),
        folder.path().join("pods.csv"),
    ];
    std::fs::write(&paths[0], nodes).unwrap();
    std::fs::write(&paths[1], pods).unwrap();
    Trace::read(&paths[0], &paths[1])
}

#[test]
fn reads_both_trace_files() {
    let trace = trace(NODES, PODS).unwrap();
    assert_eq!(trace.capacity(), 10_000);
    assert_eq!(trace.request(), 1_460);
    assert_eq!(trace.models, ["P100", "G2"]);
    let [all, part, none] = trace.pods.as_slice() else {
        panic!("{:?}", trace.pods);
    };
    assert_eq!((all.shape.gpus, all.shape.models), (1, Models::ANY));
    assert!(
        part.shape.is_fraction() && trace.nodes.iter().all(|n| part.shape.models.allow(n.model))
    );
    assert_eq!((none.shape.request(), none.memory), (0, 1024));
}

#[test]
fn finds_columns_by_name() {
    let pods = "num_gpu,name,gpu_milli,memory_mib,cpu_milli\n1,p,500,1,2\n";
    let pod = &trace(NODES, pods).unwrap().pods[0];
    assert_eq!((pod.shape.cpu, pod.memory, pod.shape.milli), (2, 1, 500));
}

#[test]
fn reports_error_with_line_field_and_value() {
    let heading = PODS.lines().next().unwrap();
    let pods = |row: &str| format!("{heading}\np0,1,1,0,0,\n{row}\n");
    for (nodes, row, expected) in [
        (
            NODES,
            "p1,x,1,1,1000,",
            "line 3: cpu_milli is \"x\"; expected: a whole number from 0 to 4294967295",
        ),
        (
            NODES,
            "p1,1,1,65,1000,",
            "line 3: num_gpu is \"65\"; expected: a whole number from 0 to 64",
        ),
        (
            NODES,
            "p1,1,1,2,500,",
            "line 3: gpu_milli is \"500\"; expected: 0 without GPUs, 1 to 1000 with one GPU, 1000 with several",
        ),
        (
            NODES,
            "p1,1",
            "line 3: num_gpu is \"\"; expected: a field without quotation marks in every column",
        ),
        (
            "sn,cpu_milli,memory_mib,gpu\n",
            "",
            "there is no column \"model\"; expected: a heading with sn, cpu_milli, memory_mib, gpu, model",
        ),
        (
            "sn,cpu_milli,memory_mib,gpu,model\n",
            "",
            "nodes.csv: there are no rows below the heading",
        ),
    ] {
        let error = trace(nodes, &pods(row)).unwrap_err().to_string();
        assert!(error.ends_with(expected), "{error}");
    }
}
