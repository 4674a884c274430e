//! The utilization of processes through the product's driver library, on drivers that support one
//! call for it, the other, or none.

use aliquot_gpusim::edit::compute_process;
use aliquot_gpusim::model::Process;
use aliquot_nvml::{Driver as _, Usage as _};

use crate::common::{TWO_A100, on_machine};
use crate::driver::open;

/// Process ids and their percent.
type Samples = Vec<(u32, u32)>;

#[test]
fn reads_process_utilization_by_either_call() {
    on_machine(TWO_A100, |machine| {
        let set = |gpu: &str, field: &str, value: &str| {
            machine.set(gpu, &[(field, value)]).unwrap();
        };
        let driver = open();
        let gpus: Vec<String> = driver
            .inventory()
            .unwrap()
            .gpus
            .into_iter()
            .map(|gpu| gpu.uuid)
            .collect();
        let samples = |gpu: usize| -> Option<Samples> {
            let found = driver.process_utilization(&gpus[gpu], 0).unwrap();
            found.map(|all| all.iter().map(|one| (one.pid, one.busy)).collect())
        };
        let busy: Samples = vec![(11, 42), (12, 30)];
        for (pid, sm) in &busy {
            let process = compute_process(*pid, 100);
            machine
                .add_process("0", Process { sm: *sm, ..process })
                .unwrap();
        }
        for (supported, of_busy, of_idle) in [
            ("ok", Some(busy.clone()), Some(Samples::new())),
            ("legacyNotSupported", Some(busy), Some(Samples::new())),
            ("notSupported", None, None),
        ] {
            set("0", "processUtilisation", supported);
            set("1", "processUtilisation", supported);
            assert_eq!(samples(0), of_busy, "{supported}");
            assert_eq!(samples(1), of_idle, "{supported}");
        }
        set("1", "processUtilisation", "ok");
        set("1", "mig", "on");
        assert_eq!(samples(1), None, "in MIG mode");
    });
}
