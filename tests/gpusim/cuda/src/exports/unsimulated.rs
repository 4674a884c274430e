//! Names that a driver exports and that are not simulated: each answers that it is not supported.
//! One that no look-up by name finds has a version after every driver's.

use crate::calls::calls;
use crate::codes::ERROR_NOT_SUPPORTED;
use crate::driver::driver;
use crate::ffi::Answer;

/// Their arguments are not read.
fn unsimulated() -> Answer {
    driver()?;
    Err(ERROR_NOT_SUPPORTED)
}

/// The same for both default streams.
fn unsimulated_on(_own: bool) -> Answer {
    unsimulated()
}

calls! { CALLS:
    cuArray3DCreate 2000 cuArray3DCreate() { unsimulated() }
    cuArray3DGetDescriptor 2000 cuArray3DGetDescriptor() { unsimulated() }
    cuArrayCreate 2000 cuArrayCreate() { unsimulated() }
    cuArrayGetDescriptor 2000 cuArrayGetDescriptor() { unsimulated() }
    cuArrayGetPlane 11020 cuArrayGetPlane() { unsimulated() }
    cuArrayGetSparseProperties 11010 cuArrayGetSparseProperties() { unsimulated() }
    cuCheckpointOperationComplete 13040 cuCheckpointOperationComplete() { unsimulated() }
    cuCheckpointProcessCheckpoint 12080 cuCheckpointProcessCheckpoint() { unsimulated() }
    cuCheckpointProcessGetRestoreThreadId 12080 cuCheckpointProcessGetRestoreThreadId()
        { unsimulated() }
    cuCheckpointProcessGetState 12080 cuCheckpointProcessGetState() { unsimulated() }
    cuCheckpointProcessLock 12080 cuCheckpointProcessLock() { unsimulated() }
    cuCheckpointProcessRestore 12080 cuCheckpointProcessRestore() { unsimulated() }
    cuCheckpointProcessUnlock 12080 cuCheckpointProcessUnlock() { unsimulated() }
    cuCoredumpDeregisterCompleteCallback 13020 cuCoredumpDeregisterCompleteCallback()
        { unsimulated() }
    cuCoredumpDeregisterStartCallback 13020 cuCoredumpDeregisterStartCallback() { unsimulated() }
    cuCoredumpGetAttribute 12010 cuCoredumpGetAttribute() { unsimulated() }
    cuCoredumpGetAttributeGlobal 12010 cuCoredumpGetAttributeGlobal() { unsimulated() }
    cuCoredumpRegisterCompleteCallback 13020 cuCoredumpRegisterCompleteCallback() { unsimulated() }
    cuCoredumpRegisterStartCallback 13020 cuCoredumpRegisterStartCallback() { unsimulated() }
    cuCoredumpSetAttribute 12010 cuCoredumpSetAttribute() { unsimulated() }
    cuCoredumpSetAttributeGlobal 12010 cuCoredumpSetAttributeGlobal() { unsimulated() }
    cuCtxGetDevResource 12040 cuCtxGetDevResource() { unsimulated() }
    cuCtxGetExecAffinity 11040 cuCtxGetExecAffinity() { unsimulated() }
    cuCtxRecordEvent 12050 cuCtxRecordEvent() { unsimulated() }
    cuCtxWaitEvent 12050 cuCtxWaitEvent() { unsimulated() }
    cuDestroyExternalMemory 10000 cuDestroyExternalMemory() { unsimulated() }
    cuDestroyExternalSemaphore 10000 cuDestroyExternalSemaphore() { unsimulated() }
    cuDevResourceGenerateDesc 12040 cuDevResourceGenerateDesc() { unsimulated() }
    cuDevSmResourceSplit 13010 cuDevSmResourceSplit() { unsimulated() }
    cuDevSmResourceSplitByCount 12040 cuDevSmResourceSplitByCount() { unsimulated() }
    cuDeviceGetCliqueCount 13040 cuDeviceGetCliqueCount() { unsimulated() }
    cuDeviceGetCliqueInfo 13040 cuDeviceGetCliqueInfo() { unsimulated() }
    cuDeviceGetDevResource 12040 cuDeviceGetDevResource() { unsimulated() }
    cuDeviceGetFabricClusterUuid 13040 cuDeviceGetFabricClusterUuid() { unsimulated() }
    cuDeviceGetHostAtomicCapabilities 13000 cuDeviceGetHostAtomicCapabilities() { unsimulated() }
    cuDeviceGetLuid 10000 cuDeviceGetLuid() { unsimulated() }
    cuDeviceGetNvSciSyncAttributes 10020 cuDeviceGetNvSciSyncAttributes() { unsimulated() }
    cuDeviceGetP2PAtomicCapabilities 13000 cuDeviceGetP2PAtomicCapabilities() { unsimulated() }
    cuDeviceGetTexture1DLinearMaxWidth 11010 cuDeviceGetTexture1DLinearMaxWidth() { unsimulated() }
    cuDeviceRegisterAsyncNotification 12040 cuDeviceRegisterAsyncNotification() { unsimulated() }
    cuDeviceUnregisterAsyncNotification 12040 cuDeviceUnregisterAsyncNotification()
        { unsimulated() }
    cuEGLApiInit 99999 cuEGLApiInit() { unsimulated() }
    cuEGLStreamConsumerAcquireFrame 7000 cuEGLStreamConsumerAcquireFrame() { unsimulated() }
    cuEGLStreamConsumerConnect 7000 cuEGLStreamConsumerConnect() { unsimulated() }
    cuEGLStreamConsumerConnectWithFlags 8000 cuEGLStreamConsumerConnectWithFlags() { unsimulated() }
    cuEGLStreamConsumerDisconnect 7000 cuEGLStreamConsumerDisconnect() { unsimulated() }
    cuEGLStreamConsumerReleaseFrame 7000 cuEGLStreamConsumerReleaseFrame() { unsimulated() }
    cuEGLStreamProducerConnect 7000 cuEGLStreamProducerConnect() { unsimulated() }
    cuEGLStreamProducerDisconnect 7000 cuEGLStreamProducerDisconnect() { unsimulated() }
    cuEGLStreamProducerPresentFrame 7000 cuEGLStreamProducerPresentFrame() { unsimulated() }
    cuEGLStreamProducerReturnFrame 7000 cuEGLStreamProducerReturnFrame() { unsimulated() }
    cuExternalMemoryGetMappedBuffer 10000 cuExternalMemoryGetMappedBuffer() { unsimulated() }
    cuExternalMemoryGetMappedMipmappedArray 10000 cuExternalMemoryGetMappedMipmappedArray()
        { unsimulated() }
    cuFabricCpyBatchAsync 13050 cuFabricCpyBatchAsync()
        / 13050 cuFabricCpyBatchAsync_ptsz as own { unsimulated_on(own) }
    cuGLGetDevices 4010 cuGLGetDevices() { unsimulated() }
    cuGLGetDevices 6050 cuGLGetDevices_v2() { unsimulated() }
    cuGLInit 2000 cuGLInit() { unsimulated() }
    cuGLMapBufferObject 2000 cuGLMapBufferObject() { unsimulated() }
    cuGLMapBufferObjectAsync 2030 cuGLMapBufferObjectAsync() { unsimulated() }
    cuGLMapBufferObjectAsync 3020 cuGLMapBufferObjectAsync_v2()
        / 7000 cuGLMapBufferObjectAsync_v2_ptsz as own { unsimulated_on(own) }
    cuGLMapBufferObject 3020 cuGLMapBufferObject_v2()
        / 7000 cuGLMapBufferObject_v2_ptds as own { unsimulated_on(own) }
    cuGLRegisterBufferObject 2000 cuGLRegisterBufferObject() { unsimulated() }
    cuGLSetBufferObjectMapFlags 2030 cuGLSetBufferObjectMapFlags() { unsimulated() }
    cuGLUnmapBufferObject 2000 cuGLUnmapBufferObject() { unsimulated() }
    cuGLUnmapBufferObjectAsync 2030 cuGLUnmapBufferObjectAsync() { unsimulated() }
    cuGLUnregisterBufferObject 2000 cuGLUnregisterBufferObject() { unsimulated() }
    cuGraphAddBatchMemOpNode 11070 cuGraphAddBatchMemOpNode() { unsimulated() }
    cuGraphAddEventRecordNode 11010 cuGraphAddEventRecordNode() { unsimulated() }
    cuGraphAddEventWaitNode 11010 cuGraphAddEventWaitNode() { unsimulated() }
    cuGraphAddExternalSemaphoresSignalNode 11020 cuGraphAddExternalSemaphoresSignalNode()
        { unsimulated() }
    cuGraphAddExternalSemaphoresWaitNode 11020 cuGraphAddExternalSemaphoresWaitNode()
        { unsimulated() }
    cuGraphAddNode 13040 cuGraphAddNode_v3() { unsimulated() }
    cuGraphBatchMemOpNodeGetParams 11070 cuGraphBatchMemOpNodeGetParams() { unsimulated() }
    cuGraphBatchMemOpNodeSetParams 11070 cuGraphBatchMemOpNodeSetParams() { unsimulated() }
    cuGraphConditionalHandleCreate 12030 cuGraphConditionalHandleCreate() { unsimulated() }
    cuGraphDestroyNode 10000 cuGraphDestroyNode() { unsimulated() }
    cuGraphEventRecordNodeGetEvent 11010 cuGraphEventRecordNodeGetEvent() { unsimulated() }
    cuGraphEventRecordNodeSetEvent 11010 cuGraphEventRecordNodeSetEvent() { unsimulated() }
    cuGraphEventWaitNodeGetEvent 11010 cuGraphEventWaitNodeGetEvent() { unsimulated() }
    cuGraphEventWaitNodeSetEvent 11010 cuGraphEventWaitNodeSetEvent() { unsimulated() }
    cuGraphExecBatchMemOpNodeSetParams 11070 cuGraphExecBatchMemOpNodeSetParams() { unsimulated() }
    cuGraphExecChildGraphNodeSetParams 11010 cuGraphExecChildGraphNodeSetParams() { unsimulated() }
    cuGraphExecEventRecordNodeSetEvent 11010 cuGraphExecEventRecordNodeSetEvent() { unsimulated() }
    cuGraphExecEventWaitNodeSetEvent 11010 cuGraphExecEventWaitNodeSetEvent() { unsimulated() }
    cuGraphExecExternalSemaphoresSignalNodeSetParams 11020
        cuGraphExecExternalSemaphoresSignalNodeSetParams() { unsimulated() }
    cuGraphExecExternalSemaphoresWaitNodeSetParams 11020
        cuGraphExecExternalSemaphoresWaitNodeSetParams() { unsimulated() }
    cuGraphExecGetId 13010 cuGraphExecGetId() { unsimulated() }
    cuGraphExecHostNodeSetParams 10020 cuGraphExecHostNodeSetParams() { unsimulated() }
    cuGraphExecMemcpyNodeSetParams 10020 cuGraphExecMemcpyNodeSetParams() { unsimulated() }
    cuGraphExecMemsetNodeSetParams 10020 cuGraphExecMemsetNodeSetParams() { unsimulated() }
    cuGraphExecNodeSetParams 12020 cuGraphExecNodeSetParams() { unsimulated() }
    cuGraphExternalSemaphoresSignalNodeGetParams 11020
        cuGraphExternalSemaphoresSignalNodeGetParams() { unsimulated() }
    cuGraphExternalSemaphoresSignalNodeSetParams 11020
        cuGraphExternalSemaphoresSignalNodeSetParams() { unsimulated() }
    cuGraphExternalSemaphoresWaitNodeGetParams 11020 cuGraphExternalSemaphoresWaitNodeGetParams()
        { unsimulated() }
    cuGraphExternalSemaphoresWaitNodeSetParams 11020 cuGraphExternalSemaphoresWaitNodeSetParams()
        { unsimulated() }
    cuGraphGetId 13010 cuGraphGetId() { unsimulated() }
    cuGraphHostNodeGetParams 10000 cuGraphHostNodeGetParams() { unsimulated() }
    cuGraphHostNodeSetParams 10000 cuGraphHostNodeSetParams() { unsimulated() }
    cuGraphKernelNodeCopyAttributes 11000 cuGraphKernelNodeCopyAttributes() { unsimulated() }
    cuGraphKernelNodeGetAttribute 11000 cuGraphKernelNodeGetAttribute() { unsimulated() }
    cuGraphKernelNodeSetAttribute 11000 cuGraphKernelNodeSetAttribute() { unsimulated() }
    cuGraphMemcpyNodeGetParams 10000 cuGraphMemcpyNodeGetParams() { unsimulated() }
    cuGraphMemcpyNodeSetParams 10000 cuGraphMemcpyNodeSetParams() { unsimulated() }
    cuGraphMemsetNodeGetParams 10000 cuGraphMemsetNodeGetParams() { unsimulated() }
    cuGraphMemsetNodeSetParams 10000 cuGraphMemsetNodeSetParams() { unsimulated() }
    cuGraphNodeFindInClone 10000 cuGraphNodeFindInClone() { unsimulated() }
    cuGraphNodeGetContainingGraph 13010 cuGraphNodeGetContainingGraph() { unsimulated() }
    cuGraphNodeGetEnabled 11060 cuGraphNodeGetEnabled() { unsimulated() }
    cuGraphNodeGetLocalId 13010 cuGraphNodeGetLocalId() { unsimulated() }
    cuGraphNodeGetParams 13020 cuGraphNodeGetParams() { unsimulated() }
    cuGraphNodeGetToolsId 13010 cuGraphNodeGetToolsId() { unsimulated() }
    cuGraphNodeSetEnabled 11060 cuGraphNodeSetEnabled() { unsimulated() }
    cuGraphNodeSetParams 12020 cuGraphNodeSetParams() { unsimulated() }
    cuGraphNodeSetParams 13040 cuGraphNodeSetParams_v2() { unsimulated() }
    cuGraphRemoveDependencies 10000 cuGraphRemoveDependencies() { unsimulated() }
    cuGraphRemoveDependencies 12030 cuGraphRemoveDependencies_v2() { unsimulated() }
    cuGraphicsEGLRegisterImage 7000 cuGraphicsEGLRegisterImage() { unsimulated() }
    cuGraphicsGLRegisterBuffer 3000 cuGraphicsGLRegisterBuffer() { unsimulated() }
    cuGraphicsGLRegisterImage 3000 cuGraphicsGLRegisterImage() { unsimulated() }
    cuGraphicsMapResources 3000 cuGraphicsMapResources()
        / 7000 cuGraphicsMapResources_ptsz as own { unsimulated_on(own) }
    cuGraphicsResourceGetMappedEglFrame 7000 cuGraphicsResourceGetMappedEglFrame() { unsimulated() }
    cuGraphicsResourceGetMappedMipmappedArray 5000 cuGraphicsResourceGetMappedMipmappedArray()
        { unsimulated() }
    cuGraphicsResourceGetMappedPointer 3000 cuGraphicsResourceGetMappedPointer() { unsimulated() }
    cuGraphicsResourceGetMappedPointer 3020 cuGraphicsResourceGetMappedPointer_v2()
        { unsimulated() }
    cuGraphicsResourceSetMapFlags 3000 cuGraphicsResourceSetMapFlags() { unsimulated() }
    cuGraphicsResourceSetMapFlags 6050 cuGraphicsResourceSetMapFlags_v2() { unsimulated() }
    cuGraphicsSubResourceGetMappedArray 3000 cuGraphicsSubResourceGetMappedArray() { unsimulated() }
    cuGraphicsUnmapResources 3000 cuGraphicsUnmapResources()
        / 7000 cuGraphicsUnmapResources_ptsz as own { unsimulated_on(own) }
    cuGraphicsUnregisterResource 3000 cuGraphicsUnregisterResource() { unsimulated() }
    cuGraphicsVDPAURegisterOutputSurface 3010 cuGraphicsVDPAURegisterOutputSurface()
        { unsimulated() }
    cuGraphicsVDPAURegisterVideoSurface 3010 cuGraphicsVDPAURegisterVideoSurface() { unsimulated() }
    cuGreenCtxGetDevResource 12040 cuGreenCtxGetDevResource() { unsimulated() }
    cuGreenCtxGetId 12090 cuGreenCtxGetId() { unsimulated() }
    cuGreenCtxRecordEvent 12040 cuGreenCtxRecordEvent() { unsimulated() }
    cuGreenCtxStreamCreate 12050 cuGreenCtxStreamCreate() { unsimulated() }
    cuGreenCtxWaitEvent 12040 cuGreenCtxWaitEvent() { unsimulated() }
    cuImportExternalMemory 10000 cuImportExternalMemory() { unsimulated() }
    cuImportExternalSemaphore 10000 cuImportExternalSemaphore() { unsimulated() }
    cuIpcGetEventHandle 4010 cuIpcGetEventHandle() { unsimulated() }
    cuIpcOpenEventHandle 4010 cuIpcOpenEventHandle() { unsimulated() }
    cuLaunchCooperativeKernelMultiDevice 9000 cuLaunchCooperativeKernelMultiDevice()
        { unsimulated() }
    cuLaunchHostFunc 13010 cuLaunchHostFunc_v2()
        / 13010 cuLaunchHostFunc_v2_ptsz as own { unsimulated_on(own) }
    cuLogicalEndpointAddDevice 13030 cuLogicalEndpointAddDevice() { unsimulated() }
    cuLogicalEndpointBindAddr 13030 cuLogicalEndpointBindAddr() { unsimulated() }
    cuLogicalEndpointBindMem 13030 cuLogicalEndpointBindMem() { unsimulated() }
    cuLogicalEndpointCreate 13030 cuLogicalEndpointCreate() { unsimulated() }
    cuLogicalEndpointDestroy 13030 cuLogicalEndpointDestroy() { unsimulated() }
    cuLogicalEndpointExport 13030 cuLogicalEndpointExport() { unsimulated() }
    cuLogicalEndpointGetLimits 13030 cuLogicalEndpointGetLimits() { unsimulated() }
    cuLogicalEndpointIdRelease 13030 cuLogicalEndpointIdRelease() { unsimulated() }
    cuLogicalEndpointIdReserve 13030 cuLogicalEndpointIdReserve() { unsimulated() }
    cuLogicalEndpointImport 13030 cuLogicalEndpointImport() { unsimulated() }
    cuLogicalEndpointQuery 13030 cuLogicalEndpointQuery() { unsimulated() }
    cuLogicalEndpointUnbind 13030 cuLogicalEndpointUnbind() { unsimulated() }
    cuLogsCurrent 12090 cuLogsCurrent() { unsimulated() }
    cuLogsDumpToFile 12090 cuLogsDumpToFile() { unsimulated() }
    cuLogsDumpToMemory 12090 cuLogsDumpToMemory() { unsimulated() }
    cuLogsRegisterCallback 12090 cuLogsRegisterCallback() { unsimulated() }
    cuLogsUnregisterCallback 12090 cuLogsUnregisterCallback() { unsimulated() }
    cuMemAllocPitch 2000 cuMemAllocPitch() { unsimulated() }
    cuMemBatchDecompressAsync 12060 cuMemBatchDecompressAsync()
        / 12060 cuMemBatchDecompressAsync_ptsz as own { unsimulated_on(own) }
    cuMemDiscardAndPrefetchBatchAsync 13000 cuMemDiscardAndPrefetchBatchAsync()
        / 13000 cuMemDiscardAndPrefetchBatchAsync_ptsz as own { unsimulated_on(own) }
    cuMemDiscardBatchAsync 13000 cuMemDiscardBatchAsync()
        / 13000 cuMemDiscardBatchAsync_ptsz as own { unsimulated_on(own) }
    cuMemFree 2000 cuMemFree() { unsimulated() }
    cuMemGetAddressRange 2000 cuMemGetAddressRange() { unsimulated() }
    cuMemGetAttribute 99999 cuMemGetAttribute() { unsimulated() }
    cuMemGetAttribute 99999 cuMemGetAttribute_v2() { unsimulated() }
    cuMemGetLocationInfo 13040 cuMemGetLocationInfo() { unsimulated() }
    cuMemHostGetDevicePointer 2020 cuMemHostGetDevicePointer() { unsimulated() }
    cuMemPoolExportPointer 11020 cuMemPoolExportPointer() { unsimulated() }
    cuMemPoolExportToShareableHandle 11020 cuMemPoolExportToShareableHandle() { unsimulated() }
    cuMemPoolImportFromShareableHandle 11020 cuMemPoolImportFromShareableHandle() { unsimulated() }
    cuMemPoolImportPointer 11020 cuMemPoolImportPointer() { unsimulated() }
    cuMemPrefetchBatchAsync 13000 cuMemPrefetchBatchAsync()
        / 13000 cuMemPrefetchBatchAsync_ptsz as own { unsimulated_on(own) }
    cuMemRangeGetAttributes 8000 cuMemRangeGetAttributes() { unsimulated() }
    cuMemSetMemPool 13000 cuMemSetMemPool() { unsimulated() }
    cuMemcpy2D 2000 cuMemcpy2D() { unsimulated() }
    cuMemcpy2DAsync 2000 cuMemcpy2DAsync() { unsimulated() }
    cuMemcpy2DUnaligned 2000 cuMemcpy2DUnaligned() { unsimulated() }
    cuMemcpy3D 2000 cuMemcpy3D() { unsimulated() }
    cuMemcpy3DAsync 2000 cuMemcpy3DAsync() { unsimulated() }
    cuMemcpy3DBatchAsync 12080 cuMemcpy3DBatchAsync()
        / 12080 cuMemcpy3DBatchAsync_ptsz as own { unsimulated_on(own) }
    cuMemcpy3DBatchAsync 13000 cuMemcpy3DBatchAsync_v2()
        / 13000 cuMemcpy3DBatchAsync_v2_ptsz as own { unsimulated_on(own) }
    cuMemcpy3DPeer 4000 cuMemcpy3DPeer() / 7000 cuMemcpy3DPeer_ptds as own { unsimulated_on(own) }
    cuMemcpy3DPeerAsync 4000 cuMemcpy3DPeerAsync()
        / 7000 cuMemcpy3DPeerAsync_ptsz as own { unsimulated_on(own) }
    cuMemcpy3DWithAttributesAsync 13020 cuMemcpy3DWithAttributesAsync()
        / 13020 cuMemcpy3DWithAttributesAsync_ptsz as own { unsimulated_on(own) }
    cuMemcpyAtoA 2000 cuMemcpyAtoA() { unsimulated() }
    cuMemcpyAtoA 3020 cuMemcpyAtoA_v2() / 7000 cuMemcpyAtoA_v2_ptds as own { unsimulated_on(own) }
    cuMemcpyAtoD 2000 cuMemcpyAtoD() { unsimulated() }
    cuMemcpyAtoH 2000 cuMemcpyAtoH() { unsimulated() }
    cuMemcpyAtoHAsync 2000 cuMemcpyAtoHAsync() { unsimulated() }
    cuMemcpyAtoHAsync 3020 cuMemcpyAtoHAsync_v2()
        / 7000 cuMemcpyAtoHAsync_v2_ptsz as own { unsimulated_on(own) }
    cuMemcpyBatchAsync 12080 cuMemcpyBatchAsync()
        / 12080 cuMemcpyBatchAsync_ptsz as own { unsimulated_on(own) }
    cuMemcpyBatchAsync 13000 cuMemcpyBatchAsync_v2()
        / 13000 cuMemcpyBatchAsync_v2_ptsz as own { unsimulated_on(own) }
    cuMemcpyDtoA 2000 cuMemcpyDtoA() { unsimulated() }
    cuMemcpyDtoD 2000 cuMemcpyDtoD() { unsimulated() }
    cuMemcpyDtoDAsync 3000 cuMemcpyDtoDAsync() { unsimulated() }
    cuMemcpyDtoH 2000 cuMemcpyDtoH() { unsimulated() }
    cuMemcpyDtoHAsync 2000 cuMemcpyDtoHAsync() { unsimulated() }
    cuMemcpyHtoA 2000 cuMemcpyHtoA() { unsimulated() }
    cuMemcpyHtoAAsync 2000 cuMemcpyHtoAAsync() { unsimulated() }
    cuMemcpyHtoAAsync 3020 cuMemcpyHtoAAsync_v2()
        / 7000 cuMemcpyHtoAAsync_v2_ptsz as own { unsimulated_on(own) }
    cuMemcpyHtoD 2000 cuMemcpyHtoD() { unsimulated() }
    cuMemcpyHtoDAsync 2000 cuMemcpyHtoDAsync() { unsimulated() }
    cuMemcpyWithAttributesAsync 13020 cuMemcpyWithAttributesAsync()
        / 13020 cuMemcpyWithAttributesAsync_ptsz as own { unsimulated_on(own) }
    cuMemsetD16 2000 cuMemsetD16() { unsimulated() }
    cuMemsetD2D16 2000 cuMemsetD2D16() { unsimulated() }
    cuMemsetD2D32 2000 cuMemsetD2D32() { unsimulated() }
    cuMemsetD2D8 2000 cuMemsetD2D8() { unsimulated() }
    cuMemsetD32 2000 cuMemsetD32() { unsimulated() }
    cuMemsetD8 2000 cuMemsetD8() { unsimulated() }
    cuMipmappedArrayGetSparseProperties 11010 cuMipmappedArrayGetSparseProperties()
        { unsimulated() }
    cuMulticastAddDevice 12010 cuMulticastAddDevice() { unsimulated() }
    cuMulticastBindAddr 12010 cuMulticastBindAddr() { unsimulated() }
    cuMulticastBindAddr 13010 cuMulticastBindAddr_v2() { unsimulated() }
    cuMulticastBindMem 12010 cuMulticastBindMem() { unsimulated() }
    cuMulticastBindMem 13010 cuMulticastBindMem_v2() { unsimulated() }
    cuMulticastCreate 12010 cuMulticastCreate() { unsimulated() }
    cuMulticastGetGranularity 12010 cuMulticastGetGranularity() { unsimulated() }
    cuMulticastUnbind 12010 cuMulticastUnbind() { unsimulated() }
    cuParamSetTexRef 2000 cuParamSetTexRef() { unsimulated() }
    cuSignalExternalSemaphoresAsync 10000 cuSignalExternalSemaphoresAsync()
        / 10000 cuSignalExternalSemaphoresAsync_ptsz as own { unsimulated_on(own) }
    cuStreamBatchMemOp 8000 cuStreamBatchMemOp()
        / 8000 cuStreamBatchMemOp_ptsz as own { unsimulated_on(own) }
    cuStreamBatchMemOp 11070 cuStreamBatchMemOp_v2()
        / 11070 cuStreamBatchMemOp_v2_ptsz as own { unsimulated_on(own) }
    cuStreamBeginCaptureToCig 13010 cuStreamBeginCaptureToCig()
        / 13010 cuStreamBeginCaptureToCig_ptsz as own { unsimulated_on(own) }
    cuStreamBeginCaptureToGraph 12030 cuStreamBeginCaptureToGraph()
        / 12030 cuStreamBeginCaptureToGraph_ptsz as own { unsimulated_on(own) }
    cuStreamBeginRecaptureToGraph 13030 cuStreamBeginRecaptureToGraph()
        / 13030 cuStreamBeginRecaptureToGraph_ptsz as own { unsimulated_on(own) }
    cuStreamEndCaptureToCig 13010 cuStreamEndCaptureToCig()
        / 13010 cuStreamEndCaptureToCig_ptsz as own { unsimulated_on(own) }
    cuStreamGetDevResource 13010 cuStreamGetDevResource()
        / 13010 cuStreamGetDevResource_ptsz as own { unsimulated_on(own) }
    cuStreamUpdateCaptureDependencies 11030 cuStreamUpdateCaptureDependencies()
        / 11030 cuStreamUpdateCaptureDependencies_ptsz as own { unsimulated_on(own) }
    cuStreamUpdateCaptureDependencies 12030 cuStreamUpdateCaptureDependencies_v2()
        / 12030 cuStreamUpdateCaptureDependencies_v2_ptsz as own { unsimulated_on(own) }
    cuSurfObjectGetResourceDesc 5000 cuSurfObjectGetResourceDesc() { unsimulated() }
    cuSurfRefGetArray 3000 cuSurfRefGetArray() { unsimulated() }
    cuSurfRefSetArray 3000 cuSurfRefSetArray() { unsimulated() }
    cuTensorMapEncodeIm2colWide 12080 cuTensorMapEncodeIm2colWide() { unsimulated() }
    cuTensorMapSetAllocationClass 13050 cuTensorMapSetAllocationClass() { unsimulated() }
    cuTexObjectGetResourceDesc 5000 cuTexObjectGetResourceDesc() { unsimulated() }
    cuTexObjectGetResourceViewDesc 5000 cuTexObjectGetResourceViewDesc() { unsimulated() }
    cuTexObjectGetTextureDesc 5000 cuTexObjectGetTextureDesc() { unsimulated() }
    cuTexRefCreate 2000 cuTexRefCreate() { unsimulated() }
    cuTexRefDestroy 2000 cuTexRefDestroy() { unsimulated() }
    cuTexRefGetAddress 2000 cuTexRefGetAddress() { unsimulated() }
    cuTexRefGetAddressMode 2000 cuTexRefGetAddressMode() { unsimulated() }
    cuTexRefGetAddress 3020 cuTexRefGetAddress_v2() { unsimulated() }
    cuTexRefGetArray 2000 cuTexRefGetArray() { unsimulated() }
    cuTexRefGetBorderColor 8000 cuTexRefGetBorderColor() { unsimulated() }
    cuTexRefGetFilterMode 2000 cuTexRefGetFilterMode() { unsimulated() }
    cuTexRefGetFlags 2000 cuTexRefGetFlags() { unsimulated() }
    cuTexRefGetFormat 2000 cuTexRefGetFormat() { unsimulated() }
    cuTexRefGetMaxAnisotropy 5000 cuTexRefGetMaxAnisotropy() { unsimulated() }
    cuTexRefGetMipmapFilterMode 5000 cuTexRefGetMipmapFilterMode() { unsimulated() }
    cuTexRefGetMipmapLevelBias 5000 cuTexRefGetMipmapLevelBias() { unsimulated() }
    cuTexRefGetMipmapLevelClamp 5000 cuTexRefGetMipmapLevelClamp() { unsimulated() }
    cuTexRefGetMipmappedArray 5000 cuTexRefGetMipmappedArray() { unsimulated() }
    cuTexRefSetAddress 2000 cuTexRefSetAddress() { unsimulated() }
    cuTexRefSetAddress2D 2020 cuTexRefSetAddress2D() { unsimulated() }
    cuTexRefSetAddress2D 3020 cuTexRefSetAddress2D_v2() { unsimulated() }
    cuTexRefSetAddress2D 4010 cuTexRefSetAddress2D_v3() { unsimulated() }
    cuTexRefSetAddressMode 2000 cuTexRefSetAddressMode() { unsimulated() }
    cuTexRefSetAddress 3020 cuTexRefSetAddress_v2() { unsimulated() }
    cuTexRefSetArray 2000 cuTexRefSetArray() { unsimulated() }
    cuTexRefSetBorderColor 8000 cuTexRefSetBorderColor() { unsimulated() }
    cuTexRefSetFilterMode 2000 cuTexRefSetFilterMode() { unsimulated() }
    cuTexRefSetFlags 2000 cuTexRefSetFlags() { unsimulated() }
    cuTexRefSetFormat 2000 cuTexRefSetFormat() { unsimulated() }
    cuTexRefSetMaxAnisotropy 5000 cuTexRefSetMaxAnisotropy() { unsimulated() }
    cuTexRefSetMipmapFilterMode 5000 cuTexRefSetMipmapFilterMode() { unsimulated() }
    cuTexRefSetMipmapLevelBias 5000 cuTexRefSetMipmapLevelBias() { unsimulated() }
    cuTexRefSetMipmapLevelClamp 5000 cuTexRefSetMipmapLevelClamp() { unsimulated() }
    cuTexRefSetMipmappedArray 5000 cuTexRefSetMipmappedArray() { unsimulated() }
    cuVDPAUGetDevice 3010 cuVDPAUGetDevice() { unsimulated() }
    cuWaitExternalSemaphoresAsync 10000 cuWaitExternalSemaphoresAsync()
        / 10000 cuWaitExternalSemaphoresAsync_ptsz as own { unsimulated_on(own) }
}
