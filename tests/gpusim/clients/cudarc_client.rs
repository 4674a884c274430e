//! A program that uses the crate cudarc, for the tests of the limiter.

use cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT;
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, LaunchConfig};
use cudarc::nvrtc::Ptx;

/// Copies, is refused more than there is, launches and times; returns the device's bytes.
pub(crate) fn run() -> usize {
    let context = CudaContext::new(0).expect("a context");
    assert_eq!(context.name().expect("a name"), "NVIDIA A100-SXM4-80GB");
    let (_, total) = context.mem_get_info().expect("an answer");
    let stream = context.new_stream().expect("a stream");
    let sent: Vec<u32> = (0..1000).collect();
    let there = stream.clone_htod(&sent).expect("a copy");
    assert_eq!(stream.clone_dtoh(&there).expect("a copy"), sent);
    let _allocated = stream.alloc_zeros::<u8>(1000 << 20).expect("1000 MiB");
    let refused = stream.alloc_zeros::<u8>(total).expect_err("too much");
    assert_eq!(refused.0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let text = ".version 8.0\n.visible .entry k_ms_40(\n)\n{ret;}\n";
    let module = context.load_module(Ptx::from_src(text)).expect("a module");
    let kernel = module.load_function("k_ms_40").expect("a kernel");
    let launch = || {
        let shape = LaunchConfig::for_num_elems(1000);
        // SAFETY: the kernel has no arguments, and is simulated.
        unsafe { stream.launch_builder(&kernel).launch(shape) }.expect("a launch");
    };
    launch();
    let record = || {
        stream
            .record_event(Some(CU_EVENT_DEFAULT))
            .expect("an event")
    };
    let start = record();
    launch();
    let end = record();
    stream.synchronize().expect("an end");
    let took = start.elapsed_ms(&end).expect("a time");
    assert!((took - 40.0).abs() < 0.001, "{took}");
    total
}
