//! Raw NVML calls: lists, fields, pairs of GPUs and events, as a C client sees them.
//!
//! Facts of: NVML API Reference, Device Queries, `NvLink` Methods, Field Value Queries and Event
//! Handling Methods.

use std::ffi::{c_ulong, c_ulonglong};

use aliquot_gpusim::edit::compute_process;
use nvml_wrapper_sys::bindings::*;

use crate::client::*;
use crate::common::{TWO_A100, on_machine};

#[test]
fn process_lists_report_the_required_size() {
    on_machine(
        "answers::process_lists_report_the_required_size",
        TWO_A100,
        |machine| {
            machine.add_process("0", compute_process(11, 100)).unwrap();
            machine.add_process("0", compute_process(22, 200)).unwrap();
            let library = opened();
            let device = device_handle(&library, 0);
            let empty = nvmlProcessInfo_t {
                pid: 0,
                usedGpuMemory: 0,
                gpuInstanceId: 0,
                computeInstanceId: 0,
            };
            let mut infos = [empty; 3];
            for (room, code, pids) in [
                (0, INSUFFICIENT_SIZE, [0, 0, 0]),
                (1, INSUFFICIENT_SIZE, [0, 0, 0]),
                (2, OK, [11, 22, 0]),
                (3, OK, [11, 22, 0]),
            ] {
                let mut count = room;
                let list = if room == 0 {
                    std::ptr::null_mut()
                } else {
                    infos.as_mut_ptr()
                };
                let name = &raw mut count;
                let answer =
                    call!(library.nvmlDeviceGetComputeRunningProcesses_v3(device, name, list));
                assert_eq!(
                    (answer, count, infos.map(|info| info.pid)),
                    (code, 2, pids),
                    "{room}"
                );
            }
            assert_eq!(infos[1].usedGpuMemory, 200 << 20);
            assert_eq!(infos[1].gpuInstanceId, u32::MAX);
            let mut count = 0;
            let (idle, nowhere) = (device_handle(&library, 1), std::ptr::null_mut());
            let answer = call!(library.nvmlDeviceGetComputeRunningProcesses_v3(
                idle,
                &raw mut count,
                nowhere
            ));
            assert_eq!((answer, count), (OK, 0));
        },
    );
}

#[test]
fn samples_process_utilisation_only_on_busy_gpus() {
    on_machine(
        "answers::samples_process_utilisation_only_on_busy_gpus",
        TWO_A100,
        |machine| {
            let mut process = compute_process(11, 100);
            process.sm = 42;
            machine.add_process("0", process).unwrap();
            // An idle process is in no sample.
            machine.add_process("0", compute_process(12, 100)).unwrap();
            machine.add_process("1", compute_process(13, 100)).unwrap();
            let library = opened();
            let (busy, idle) = (device_handle(&library, 0), device_handle(&library, 1));
            let (mut count, nowhere) = (0, std::ptr::null_mut());
            let name = &raw mut count;
            let answer = call!(library.nvmlDeviceGetProcessUtilization(busy, nowhere, name, 0));
            assert_eq!((answer, count), (INSUFFICIENT_SIZE, 1));
            let mut sample = nvmlProcessUtilizationSample_t {
                pid: 0,
                timeStamp: 0,
                smUtil: 0,
                memUtil: 0,
                encUtil: 0,
                decUtil: 0,
            };
            let name = &raw mut count;
            let answer =
                call!(library.nvmlDeviceGetProcessUtilization(busy, &raw mut sample, name, 0));
            assert_eq!((answer, sample.pid, sample.smUtil), (OK, 11, 42));
            let name = &raw mut count;
            let answer = call!(library.nvmlDeviceGetProcessUtilization(idle, nowhere, name, 0));
            assert_eq!(answer, NOT_FOUND);
        },
    );
}

#[test]
fn reports_missing_features_as_not_supported_per_field() {
    let name = "answers::reports_missing_features_as_not_supported_per_field";
    on_machine(name, "gpus: [{model: Tesla T4}]", |_| {
        let library = opened();
        let device = device_handle(&library, 0);
        let (mut now, mut later) = (0, 0);
        let mig = call!(library.nvmlDeviceGetMigMode(device, &raw mut now, &raw mut later));
        assert_eq!(mig, NOT_SUPPORTED);
        assert_eq!(
            number(|out| call!(library.nvmlDeviceGetMaxMigDeviceCount(device, out))),
            Ok(0)
        );
        assert_eq!(
            number(|out| call!(library.nvmlDeviceGetFanSpeed(device, out))),
            Err(NOT_SUPPORTED)
        );
        assert_eq!(
            number(|out| call!(library.nvmlDeviceGetNumaNodeId(device, out))),
            Err(NOT_SUPPORTED)
        );
        let link = |link| number(|out| call!(library.nvmlDeviceGetNvLinkState(device, link, out)));
        assert_eq!(
            (link(0), link(18)),
            (Err(NOT_SUPPORTED), Err(INVALID_ARGUMENT))
        );
        let sensor =
            |sensor| number(|out| call!(library.nvmlDeviceGetTemperature(device, sensor, out)));
        assert_eq!((sensor(0), sensor(1)), (Ok(34), Err(INVALID_ARGUMENT)));

        let field = |id| nvmlFieldValue_t {
            fieldId: id,
            scopeId: 0,
            timestamp: 0,
            latencyUsec: 0,
            valueType: 0,
            nvmlReturn: 0,
            value: nvmlValue_t { ullVal: 0 },
        };
        let mut fields = [field(91), field(138), field(186)];
        let answer = call!(library.nvmlDeviceGetFieldValues(device, 3, fields.as_mut_ptr()));
        assert_eq!(
            (answer, fields.map(|f| f.nvmlReturn)),
            (OK, [OK, NOT_SUPPORTED, OK])
        );
        // SAFETY: the field's type is an unsigned int.
        assert_eq!(unsafe { fields[2].value.uiVal }, 9000);
        // Exported and not simulated.
        let mut offset = 0;
        assert_eq!(
            call!(library.nvmlDeviceGetGpcClkVfOffset(device, &raw mut offset)),
            NOT_SUPPORTED
        );
    });
}

#[test]
fn reports_fabric_state_with_and_without_version() {
    let name = "answers::reports_fabric_state_with_and_without_version";
    on_machine(name, "gpus: [{model: NVIDIA H200}]", |machine| {
        let library = opened();
        let device = device_handle(&library, 0);
        let size = u32::try_from(size_of::<nvmlGpuFabricInfo_v2_t>()).unwrap();
        let check = |state: u8, status: nvmlReturn_t| {
            let mut info = nvmlGpuFabricInfo_t {
                clusterUuid: [1; 16],
                status: 1,
                cliqueId: 1,
                state: 9,
            };
            let answer = call!(library.nvmlDeviceGetGpuFabricInfo(device, &raw mut info));
            assert_eq!((answer, info.state, info.status), (OK, state, status));
            let mut info = nvmlGpuFabricInfoV_t {
                version: size | 1 << 24,
                clusterUuid: [1; 16],
                status: 1,
                cliqueId: 1,
                state: 9,
                healthMask: 1,
                healthSummary: 7,
            };
            let out = &raw mut info;
            let answer = call!(library.nvmlDeviceGetGpuFabricInfoV(device, out));
            assert_eq!(answer, VERSION_MISMATCH);
            info.version = size | 2 << 24;
            let out = &raw mut info;
            let answer = call!(library.nvmlDeviceGetGpuFabricInfoV(device, out));
            assert_eq!((answer, info.state, info.status), (OK, state, status));
            assert_eq!(info.healthSummary, 7, "not part of version 2");
        };
        check(0, OK);
        machine.set("0", &[("fabric", "inProgress")]).unwrap();
        check(2, OK);
        machine.set("0", &[("fabric", "failed")]).unwrap();
        check(3, nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES);
    });
}

#[test]
fn describes_topology_and_affinity_of_gpu_pairs() {
    let yaml = "gpus: [{model: NVIDIA H200}, {model: NVIDIA H200, numa: 1}, {model: Tesla T4}]";
    on_machine(
        "answers::describes_topology_and_affinity_of_gpu_pairs",
        yaml,
        |_| {
            let library = opened();
            let devices = [0, 1, 2].map(|index| device_handle(&library, index));
            let level = |a: usize, b: usize| {
                number(|out| {
                    call!(library.nvmlDeviceGetTopologyCommonAncestor(devices[a], devices[b], out))
                })
            };
            assert_eq!(
                (level(0, 1), level(0, 2), level(1, 1)),
                (Ok(50), Ok(40), Ok(0))
            );
            let nvlink = |a: usize, b: usize| {
                number(|out| call!(library.nvmlDeviceGetP2PStatus(devices[a], devices[b], 2, out)))
            };
            assert_eq!((nvlink(0, 1), nvlink(0, 2)), (Ok(0), Ok(5)));
            let kind = |link| {
                number(|out| {
                    call!(library.nvmlDeviceGetNvLinkRemoteDeviceType(devices[0], link, out))
                })
            };
            assert_eq!(kind(17), Ok(2));
            let mut nodes: [c_ulong; 2] = [9; 2];
            let out = nodes.as_mut_ptr();
            assert_eq!(
                call!(library.nvmlDeviceGetMemoryAffinity(devices[1], 2, out, 0)),
                OK
            );
            assert_eq!(nodes, [2, 0]);
            assert_eq!(
                call!(library.nvmlDeviceGetMemoryAffinity(devices[1], 0, out, 0)),
                INVALID_ARGUMENT
            );
        },
    );
}

#[test]
fn event_set_reports_only_later_events_of_its_gpus() {
    let name = "answers::event_set_reports_only_later_events_of_its_gpus";
    on_machine(name, TWO_A100, |machine| {
        let library = opened();
        let (watched, unwatched) = (device_handle(&library, 0), "1");
        machine.xid("0", 1).unwrap();
        let mut set = std::ptr::null_mut();
        assert_eq!(call!(library.nvmlEventSetCreate(&raw mut set)), OK);
        let all = c_ulonglong::MAX;
        assert_eq!(
            call!(library.nvmlDeviceRegisterEvents(watched, all, set)),
            NOT_SUPPORTED
        );
        let xids = c_ulonglong::from(nvmlEventTypeXidCriticalError);
        assert_eq!(
            call!(library.nvmlDeviceRegisterEvents(watched, xids, set)),
            OK
        );
        machine.xid(unwatched, 2).unwrap();
        machine.xid("0", 3).unwrap();
        machine.xid("0", 4).unwrap();
        machine.set("0", &[("health", "lost")]).unwrap();
        let mut data = nvmlEventData_t {
            device: std::ptr::null_mut(),
            eventType: 0,
            eventData: 0,
            gpuInstanceId: 0,
            computeInstanceId: 0,
        };
        for expected in [3, 4] {
            assert_eq!(
                call!(library.nvmlEventSetWait_v2(set, &raw mut data, 1000)),
                OK
            );
            assert_eq!(
                (data.device, data.eventType, data.eventData),
                (watched, xids, expected)
            );
        }
        assert_eq!(
            call!(library.nvmlEventSetWait_v2(set, &raw mut data, 1000)),
            GPU_IS_LOST
        );
        machine.set("0", &[("health", "ok")]).unwrap();
        let timeout = nvmlReturn_enum_NVML_ERROR_TIMEOUT;
        assert_eq!(
            call!(library.nvmlEventSetWait_v2(set, &raw mut data, 10)),
            timeout
        );
        assert_eq!(call!(library.nvmlEventSetFree(set)), OK);
        assert_eq!(call!(library.nvmlEventSetFree(set)), INVALID_ARGUMENT);
        assert_eq!(
            call!(library.nvmlEventSetWait_v2(set, &raw mut data, 10)),
            INVALID_ARGUMENT
        );
    });
}
