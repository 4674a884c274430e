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

/// Names with the version since which they exist; then those of newer forms of a call, and those
/// with a twin for threads' own streams.
macro_rules! unsimulated {
    (
        $($since:literal: $($name:ident)+;)*
        forms { $($form:ident $form_since:literal $form_symbol:ident;)* }
        twins {
            $($stem:ident $stem_since:literal $symbol:ident / $twin_since:literal $twin:ident;)*
        }
    ) => {
        calls! { CALLS:
            $($($name $since $name() { unsimulated() })+)*
            $($form $form_since $form_symbol() { unsimulated() })*
            $($stem $stem_since $symbol() / $twin_since $twin as own { unsimulated_on(own) })*
        }
    };
}

unsimulated! {
    2000: cuArray3DCreate cuArray3DGetDescriptor cuArrayCreate cuArrayGetDescriptor cuGLInit
        cuGLMapBufferObject cuGLRegisterBufferObject cuGLUnmapBufferObject
        cuGLUnregisterBufferObject cuMemAllocPitch cuMemFree cuMemGetAddressRange cuMemcpy2D
        cuMemcpy2DAsync cuMemcpy2DUnaligned cuMemcpy3D cuMemcpy3DAsync cuMemcpyAtoA cuMemcpyAtoD
        cuMemcpyAtoH cuMemcpyAtoHAsync cuMemcpyDtoA cuMemcpyDtoD cuMemcpyDtoH cuMemcpyDtoHAsync
        cuMemcpyHtoA cuMemcpyHtoAAsync cuMemcpyHtoD cuMemcpyHtoDAsync cuMemsetD16 cuMemsetD2D16
        cuMemsetD2D32 cuMemsetD2D8 cuMemsetD32 cuMemsetD8 cuParamSetTexRef cuTexRefCreate
        cuTexRefDestroy cuTexRefGetAddress cuTexRefGetAddressMode cuTexRefGetArray
        cuTexRefGetFilterMode cuTexRefGetFlags cuTexRefGetFormat cuTexRefSetAddress
        cuTexRefSetAddressMode cuTexRefSetArray cuTexRefSetFilterMode cuTexRefSetFlags
        cuTexRefSetFormat;
    2020: cuMemHostGetDevicePointer cuTexRefSetAddress2D;
    2030: cuGLMapBufferObjectAsync cuGLSetBufferObjectMapFlags cuGLUnmapBufferObjectAsync;
    3000: cuGraphicsGLRegisterBuffer cuGraphicsGLRegisterImage
        cuGraphicsResourceGetMappedPointer cuGraphicsResourceSetMapFlags
        cuGraphicsSubResourceGetMappedArray cuGraphicsUnregisterResource cuMemcpyDtoDAsync
        cuSurfRefGetArray cuSurfRefSetArray;
    3010: cuGraphicsVDPAURegisterOutputSurface cuGraphicsVDPAURegisterVideoSurface
        cuVDPAUGetDevice;
    4010: cuGLGetDevices cuIpcGetEventHandle cuIpcOpenEventHandle;
    5000: cuGraphicsResourceGetMappedMipmappedArray cuSurfObjectGetResourceDesc
        cuTexObjectGetResourceDesc cuTexObjectGetResourceViewDesc cuTexObjectGetTextureDesc
        cuTexRefGetMaxAnisotropy cuTexRefGetMipmapFilterMode cuTexRefGetMipmapLevelBias
        cuTexRefGetMipmapLevelClamp cuTexRefGetMipmappedArray cuTexRefSetMaxAnisotropy
        cuTexRefSetMipmapFilterMode cuTexRefSetMipmapLevelBias cuTexRefSetMipmapLevelClamp
        cuTexRefSetMipmappedArray;
    7000: cuEGLStreamConsumerAcquireFrame cuEGLStreamConsumerConnect
        cuEGLStreamConsumerDisconnect cuEGLStreamConsumerReleaseFrame cuEGLStreamProducerConnect
        cuEGLStreamProducerDisconnect cuEGLStreamProducerPresentFrame
        cuEGLStreamProducerReturnFrame cuGraphicsEGLRegisterImage
        cuGraphicsResourceGetMappedEglFrame;
    8000: cuEGLStreamConsumerConnectWithFlags cuMemRangeGetAttributes cuTexRefGetBorderColor
        cuTexRefSetBorderColor;
    9000: cuLaunchCooperativeKernelMultiDevice;
    10000: cuDestroyExternalMemory cuDestroyExternalSemaphore cuDeviceGetLuid
        cuExternalMemoryGetMappedBuffer cuExternalMemoryGetMappedMipmappedArray
        cuGraphDestroyNode cuGraphHostNodeGetParams cuGraphHostNodeSetParams
        cuGraphMemcpyNodeGetParams cuGraphMemcpyNodeSetParams cuGraphMemsetNodeGetParams
        cuGraphMemsetNodeSetParams cuGraphNodeFindInClone cuGraphRemoveDependencies
        cuImportExternalMemory cuImportExternalSemaphore;
    10020: cuDeviceGetNvSciSyncAttributes cuGraphExecHostNodeSetParams
        cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams;
    11000: cuGraphKernelNodeCopyAttributes cuGraphKernelNodeGetAttribute
        cuGraphKernelNodeSetAttribute;
    11010: cuArrayGetSparseProperties cuDeviceGetTexture1DLinearMaxWidth
        cuGraphAddEventRecordNode cuGraphAddEventWaitNode cuGraphEventRecordNodeGetEvent
        cuGraphEventRecordNodeSetEvent cuGraphEventWaitNodeGetEvent cuGraphEventWaitNodeSetEvent
        cuGraphExecChildGraphNodeSetParams cuGraphExecEventRecordNodeSetEvent
        cuGraphExecEventWaitNodeSetEvent cuMipmappedArrayGetSparseProperties;
    11020: cuArrayGetPlane cuGraphAddExternalSemaphoresSignalNode
        cuGraphAddExternalSemaphoresWaitNode cuGraphExecExternalSemaphoresSignalNodeSetParams
        cuGraphExecExternalSemaphoresWaitNodeSetParams
        cuGraphExternalSemaphoresSignalNodeGetParams
        cuGraphExternalSemaphoresSignalNodeSetParams cuGraphExternalSemaphoresWaitNodeGetParams
        cuGraphExternalSemaphoresWaitNodeSetParams cuMemPoolExportPointer
        cuMemPoolExportToShareableHandle cuMemPoolImportFromShareableHandle
        cuMemPoolImportPointer;
    11040: cuCtxGetExecAffinity;
    11060: cuGraphNodeGetEnabled cuGraphNodeSetEnabled;
    11070: cuGraphAddBatchMemOpNode cuGraphBatchMemOpNodeGetParams
        cuGraphBatchMemOpNodeSetParams cuGraphExecBatchMemOpNodeSetParams;
    12010: cuCoredumpGetAttribute cuCoredumpGetAttributeGlobal cuCoredumpSetAttribute
        cuCoredumpSetAttributeGlobal cuMulticastAddDevice cuMulticastBindAddr cuMulticastBindMem
        cuMulticastCreate cuMulticastGetGranularity cuMulticastUnbind;
    12020: cuGraphExecNodeSetParams cuGraphNodeSetParams;
    12030: cuGraphConditionalHandleCreate;
    12040: cuCtxGetDevResource cuDevResourceGenerateDesc cuDevSmResourceSplitByCount
        cuDeviceGetDevResource cuDeviceRegisterAsyncNotification
        cuDeviceUnregisterAsyncNotification cuGreenCtxGetDevResource cuGreenCtxRecordEvent
        cuGreenCtxWaitEvent;
    12050: cuCtxRecordEvent cuCtxWaitEvent cuGreenCtxStreamCreate;
    12080: cuCheckpointProcessCheckpoint cuCheckpointProcessGetRestoreThreadId
        cuCheckpointProcessGetState cuCheckpointProcessLock cuCheckpointProcessRestore
        cuCheckpointProcessUnlock cuTensorMapEncodeIm2colWide;
    12090: cuGreenCtxGetId cuLogsCurrent cuLogsDumpToFile cuLogsDumpToMemory
        cuLogsRegisterCallback cuLogsUnregisterCallback;
    13000: cuDeviceGetHostAtomicCapabilities cuDeviceGetP2PAtomicCapabilities cuMemSetMemPool;
    13010: cuDevSmResourceSplit cuGraphExecGetId cuGraphGetId cuGraphNodeGetContainingGraph
        cuGraphNodeGetLocalId cuGraphNodeGetToolsId;
    13020: cuCoredumpDeregisterCompleteCallback cuCoredumpDeregisterStartCallback
        cuCoredumpRegisterCompleteCallback cuCoredumpRegisterStartCallback cuGraphNodeGetParams;
    13030: cuLogicalEndpointAddDevice cuLogicalEndpointBindAddr cuLogicalEndpointBindMem
        cuLogicalEndpointCreate cuLogicalEndpointDestroy cuLogicalEndpointExport
        cuLogicalEndpointGetLimits cuLogicalEndpointIdRelease cuLogicalEndpointIdReserve
        cuLogicalEndpointImport cuLogicalEndpointQuery cuLogicalEndpointUnbind;
    13040: cuCheckpointOperationComplete cuDeviceGetCliqueCount cuDeviceGetCliqueInfo
        cuDeviceGetFabricClusterUuid cuMemGetLocationInfo;
    13050: cuTensorMapSetAllocationClass;
    99999: cuEGLApiInit cuMemGetAttribute;
    forms {
        cuGLGetDevices 6050 cuGLGetDevices_v2; cuGraphAddNode 13040 cuGraphAddNode_v3;
        cuGraphNodeSetParams 13040 cuGraphNodeSetParams_v2;
        cuGraphRemoveDependencies 12030 cuGraphRemoveDependencies_v2;
        cuGraphicsResourceGetMappedPointer 3020 cuGraphicsResourceGetMappedPointer_v2;
        cuGraphicsResourceSetMapFlags 6050 cuGraphicsResourceSetMapFlags_v2;
        cuMemGetAttribute 99999 cuMemGetAttribute_v2;
        cuMulticastBindAddr 13010 cuMulticastBindAddr_v2;
        cuMulticastBindMem 13010 cuMulticastBindMem_v2;
        cuTexRefGetAddress 3020 cuTexRefGetAddress_v2;
        cuTexRefSetAddress2D 3020 cuTexRefSetAddress2D_v2;
        cuTexRefSetAddress2D 4010 cuTexRefSetAddress2D_v3;
        cuTexRefSetAddress 3020 cuTexRefSetAddress_v2;
    }
    twins {
        cuFabricCpyBatchAsync 13050 cuFabricCpyBatchAsync / 13050 cuFabricCpyBatchAsync_ptsz;
        cuGLMapBufferObjectAsync 3020 cuGLMapBufferObjectAsync_v2 / 7000 cuGLMapBufferObjectAsync_v2_ptsz;
        cuGLMapBufferObject 3020 cuGLMapBufferObject_v2 / 7000 cuGLMapBufferObject_v2_ptds;
        cuGraphicsMapResources 3000 cuGraphicsMapResources / 7000 cuGraphicsMapResources_ptsz;
        cuGraphicsUnmapResources 3000 cuGraphicsUnmapResources / 7000 cuGraphicsUnmapResources_ptsz;
        cuLaunchHostFunc 13010 cuLaunchHostFunc_v2 / 13010 cuLaunchHostFunc_v2_ptsz;
        cuMemBatchDecompressAsync 12060 cuMemBatchDecompressAsync / 12060 cuMemBatchDecompressAsync_ptsz;
        cuMemDiscardAndPrefetchBatchAsync 13000 cuMemDiscardAndPrefetchBatchAsync / 13000 cuMemDiscardAndPrefetchBatchAsync_ptsz;
        cuMemDiscardBatchAsync 13000 cuMemDiscardBatchAsync / 13000 cuMemDiscardBatchAsync_ptsz;
        cuMemPrefetchBatchAsync 13000 cuMemPrefetchBatchAsync / 13000 cuMemPrefetchBatchAsync_ptsz;
        cuMemcpy3DBatchAsync 12080 cuMemcpy3DBatchAsync / 12080 cuMemcpy3DBatchAsync_ptsz;
        cuMemcpy3DBatchAsync 13000 cuMemcpy3DBatchAsync_v2 / 13000 cuMemcpy3DBatchAsync_v2_ptsz;
        cuMemcpy3DPeer 4000 cuMemcpy3DPeer / 7000 cuMemcpy3DPeer_ptds;
        cuMemcpy3DPeerAsync 4000 cuMemcpy3DPeerAsync / 7000 cuMemcpy3DPeerAsync_ptsz;
        cuMemcpy3DWithAttributesAsync 13020 cuMemcpy3DWithAttributesAsync / 13020 cuMemcpy3DWithAttributesAsync_ptsz;
        cuMemcpyAtoA 3020 cuMemcpyAtoA_v2 / 7000 cuMemcpyAtoA_v2_ptds;
        cuMemcpyAtoHAsync 3020 cuMemcpyAtoHAsync_v2 / 7000 cuMemcpyAtoHAsync_v2_ptsz;
        cuMemcpyBatchAsync 12080 cuMemcpyBatchAsync / 12080 cuMemcpyBatchAsync_ptsz;
        cuMemcpyBatchAsync 13000 cuMemcpyBatchAsync_v2 / 13000 cuMemcpyBatchAsync_v2_ptsz;
        cuMemcpyHtoAAsync 3020 cuMemcpyHtoAAsync_v2 / 7000 cuMemcpyHtoAAsync_v2_ptsz;
        cuMemcpyWithAttributesAsync 13020 cuMemcpyWithAttributesAsync / 13020 cuMemcpyWithAttributesAsync_ptsz;
        cuSignalExternalSemaphoresAsync 10000 cuSignalExternalSemaphoresAsync / 10000 cuSignalExternalSemaphoresAsync_ptsz;
        cuStreamBatchMemOp 8000 cuStreamBatchMemOp / 8000 cuStreamBatchMemOp_ptsz;
        cuStreamBatchMemOp 11070 cuStreamBatchMemOp_v2 / 11070 cuStreamBatchMemOp_v2_ptsz;
        cuStreamBeginCaptureToCig 13010 cuStreamBeginCaptureToCig / 13010 cuStreamBeginCaptureToCig_ptsz;
        cuStreamBeginCaptureToGraph 12030 cuStreamBeginCaptureToGraph / 12030 cuStreamBeginCaptureToGraph_ptsz;
        cuStreamBeginRecaptureToGraph 13030 cuStreamBeginRecaptureToGraph / 13030 cuStreamBeginRecaptureToGraph_ptsz;
        cuStreamEndCaptureToCig 13010 cuStreamEndCaptureToCig / 13010 cuStreamEndCaptureToCig_ptsz;
        cuStreamGetDevResource 13010 cuStreamGetDevResource / 13010 cuStreamGetDevResource_ptsz;
        cuStreamUpdateCaptureDependencies 11030 cuStreamUpdateCaptureDependencies / 11030 cuStreamUpdateCaptureDependencies_ptsz;
        cuStreamUpdateCaptureDependencies 12030 cuStreamUpdateCaptureDependencies_v2 / 12030 cuStreamUpdateCaptureDependencies_v2_ptsz;
        cuWaitExternalSemaphoresAsync 10000 cuWaitExternalSemaphoresAsync / 10000 cuWaitExternalSemaphoresAsync_ptsz;
    }
}
