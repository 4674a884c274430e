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
    2000: cuArray3DCreate cuArray3DGetDescriptor cuArrayCreate cuArrayGetDescriptor
        cuDeviceGetProperties cuFuncSetBlockShape cuFuncSetSharedSize cuGLInit cuGLMapBufferObject
        cuGLRegisterBufferObject cuGLUnmapBufferObject cuGLUnregisterBufferObject cuLaunch
        cuLaunchGrid cuLaunchGridAsync cuMemAllocHost cuMemAllocPitch cuMemFree cuMemGetAddressRange
        cuMemcpy2D cuMemcpy2DAsync cuMemcpy2DUnaligned cuMemcpy3D cuMemcpy3DAsync cuMemcpyAtoA
        cuMemcpyAtoD cuMemcpyAtoH cuMemcpyAtoHAsync cuMemcpyDtoA cuMemcpyDtoD cuMemcpyDtoH
        cuMemcpyDtoHAsync cuMemcpyHtoA cuMemcpyHtoAAsync cuMemcpyHtoD cuMemcpyHtoDAsync cuMemsetD16
        cuMemsetD2D16 cuMemsetD2D32 cuMemsetD2D8 cuMemsetD32 cuMemsetD8 cuModuleGetGlobal
        cuModuleGetTexRef cuParamSetSize cuParamSetTexRef cuParamSetf cuParamSeti cuParamSetv
        cuTexRefCreate cuTexRefDestroy cuTexRefGetAddress cuTexRefGetAddressMode cuTexRefGetArray
        cuTexRefGetFilterMode cuTexRefGetFlags cuTexRefGetFormat cuTexRefSetAddress
        cuTexRefSetAddressMode cuTexRefSetArray cuTexRefSetFilterMode cuTexRefSetFlags
        cuTexRefSetFormat;
    2020: cuMemHostGetDevicePointer cuTexRefSetAddress2D;
    2030: cuGLMapBufferObjectAsync cuGLSetBufferObjectMapFlags cuGLUnmapBufferObjectAsync
        cuMemHostGetFlags;
    3000: cuGraphicsGLRegisterBuffer cuGraphicsGLRegisterImage cuGraphicsResourceGetMappedPointer
        cuGraphicsResourceSetMapFlags cuGraphicsSubResourceGetMappedArray
        cuGraphicsUnregisterResource cuMemcpyDtoDAsync cuModuleGetSurfRef cuSurfRefGetArray
        cuSurfRefSetArray;
    3010: cuGraphicsVDPAURegisterOutputSurface cuGraphicsVDPAURegisterVideoSurface cuVDPAUGetDevice;
    3020: cuCtxGetCacheConfig cuCtxSetCacheConfig;
    4000: cuCtxDisablePeerAccess cuCtxEnablePeerAccess cuDeviceCanAccessPeer cuMemHostRegister
        cuMemHostUnregister cuProfilerInitialize cuProfilerStart cuProfilerStop;
    4010: cuDeviceGetByPCIBusId cuDeviceGetPCIBusId cuGLGetDevices cuIpcGetEventHandle
        cuIpcOpenEventHandle;
    4020: cuCtxGetSharedMemConfig cuCtxSetSharedMemConfig cuFuncSetSharedMemConfig;
    5000: cuGraphicsResourceGetMappedMipmappedArray cuMipmappedArrayGetLevel cuSurfObjectCreate
        cuSurfObjectDestroy cuSurfObjectGetResourceDesc cuTexObjectCreate cuTexObjectDestroy
        cuTexObjectGetResourceDesc cuTexObjectGetResourceViewDesc cuTexObjectGetTextureDesc
        cuTexRefGetMaxAnisotropy cuTexRefGetMipmapFilterMode cuTexRefGetMipmapLevelBias
        cuTexRefGetMipmapLevelClamp cuTexRefGetMipmappedArray cuTexRefSetMaxAnisotropy
        cuTexRefSetMipmapFilterMode cuTexRefSetMipmapLevelBias cuTexRefSetMipmapLevelClamp
        cuTexRefSetMipmappedArray;
    5050: cuLinkAddData cuLinkAddFile cuLinkComplete cuLinkCreate cuLinkDestroy;
    6000: cuPointerSetAttribute;
    6050: cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxPotentialBlockSize;
    7000: cuCtxGetFlags cuDevicePrimaryCtxSetFlags cuEGLStreamConsumerAcquireFrame
        cuEGLStreamConsumerConnect cuEGLStreamConsumerDisconnect cuEGLStreamConsumerReleaseFrame
        cuEGLStreamProducerConnect cuEGLStreamProducerDisconnect cuEGLStreamProducerPresentFrame
        cuEGLStreamProducerReturnFrame cuGraphicsEGLRegisterImage
        cuGraphicsResourceGetMappedEglFrame cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
        cuOccupancyMaxPotentialBlockSizeWithFlags;
    8000: cuDeviceGetP2PAttribute cuEGLStreamConsumerConnectWithFlags cuMemRangeGetAttribute
        cuMemRangeGetAttributes cuTexRefGetBorderColor cuTexRefSetBorderColor;
    9000: cuLaunchCooperativeKernelMultiDevice;
    10000: cuDestroyExternalMemory cuDestroyExternalSemaphore cuDeviceGetLuid
        cuExternalMemoryGetMappedBuffer cuExternalMemoryGetMappedMipmappedArray
        cuGraphAddChildGraphNode cuGraphAddDependencies cuGraphAddEmptyNode cuGraphAddHostNode
        cuGraphAddKernelNode cuGraphAddMemcpyNode cuGraphAddMemsetNode cuGraphChildGraphNodeGetGraph
        cuGraphClone cuGraphDestroyNode cuGraphGetEdges cuGraphGetNodes cuGraphGetRootNodes
        cuGraphHostNodeGetParams cuGraphHostNodeSetParams cuGraphKernelNodeGetParams
        cuGraphKernelNodeSetParams cuGraphMemcpyNodeGetParams cuGraphMemcpyNodeSetParams
        cuGraphMemsetNodeGetParams cuGraphMemsetNodeSetParams cuGraphNodeFindInClone
        cuGraphNodeGetDependencies cuGraphNodeGetDependentNodes cuGraphNodeGetType
        cuGraphRemoveDependencies cuImportExternalMemory cuImportExternalSemaphore;
    10010: cuGraphExecKernelNodeSetParams;
    10020: cuDeviceGetNvSciSyncAttributes cuGraphExecHostNodeSetParams
        cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams cuGraphExecUpdate
        cuMemGetAccess cuOccupancyAvailableDynamicSMemPerBlock;
    11000: cuCtxResetPersistingL2Cache cuFuncGetModule cuGraphKernelNodeCopyAttributes
        cuGraphKernelNodeGetAttribute cuGraphKernelNodeSetAttribute;
    11010: cuArrayGetSparseProperties cuDeviceGetTexture1DLinearMaxWidth cuGraphAddEventRecordNode
        cuGraphAddEventWaitNode cuGraphEventRecordNodeGetEvent cuGraphEventRecordNodeSetEvent
        cuGraphEventWaitNodeGetEvent cuGraphEventWaitNodeSetEvent cuGraphExecChildGraphNodeSetParams
        cuGraphExecEventRecordNodeSetEvent cuGraphExecEventWaitNodeSetEvent
        cuMipmappedArrayGetSparseProperties;
    11020: cuArrayGetPlane cuDeviceSetMemPool cuGraphAddExternalSemaphoresSignalNode
        cuGraphAddExternalSemaphoresWaitNode cuGraphExecExternalSemaphoresSignalNodeSetParams
        cuGraphExecExternalSemaphoresWaitNodeSetParams cuGraphExternalSemaphoresSignalNodeGetParams
        cuGraphExternalSemaphoresSignalNodeSetParams cuGraphExternalSemaphoresWaitNodeGetParams
        cuGraphExternalSemaphoresWaitNodeSetParams cuMemPoolGetAccess
        cuMemPoolSetAccess;
    11030: cuFlushGPUDirectRDMAWrites cuGraphDebugDotPrint cuGraphReleaseUserObject
        cuGraphRetainUserObject cuUserObjectCreate cuUserObjectRelease cuUserObjectRetain;
    11040: cuCtxGetExecAffinity cuDeviceGetExecAffinitySupport cuDeviceSetGraphMemAttribute
        cuGraphMemAllocNodeGetParams cuGraphMemFreeNodeGetParams;
    11060: cuArrayGetMemoryRequirements cuGraphNodeGetEnabled cuGraphNodeSetEnabled
        cuMipmappedArrayGetMemoryRequirements;
    11070: cuGraphAddBatchMemOpNode cuGraphBatchMemOpNodeGetParams cuGraphBatchMemOpNodeSetParams
        cuGraphExecBatchMemOpNodeSetParams cuOccupancyMaxActiveClusters
        cuOccupancyMaxPotentialClusterSize;
    12000: cuGraphExecGetFlags cuKernelSetAttribute cuKernelSetCacheConfig cuLibraryGetManaged
        cuLibraryGetUnifiedFunction cuLibraryLoadFromFile cuTensorMapEncodeIm2col cuTensorMapEncodeTiled
        cuTensorMapReplaceAddress;
    12010: cuCoredumpGetAttribute cuCoredumpGetAttributeGlobal cuCoredumpSetAttribute
        cuCoredumpSetAttributeGlobal cuCtxSetFlags cuMulticastAddDevice cuMulticastBindAddr
        cuMulticastBindMem cuMulticastCreate cuMulticastGetGranularity cuMulticastUnbind;
    12020: cuGraphAddNode cuGraphExecNodeSetParams cuGraphNodeSetParams;
    12030: cuFuncGetName cuGraphConditionalHandleCreate cuKernelGetName;
    12040: cuCtxGetDevResource cuDevResourceGenerateDesc cuDevSmResourceSplitByCount
        cuDeviceGetDevResource cuDeviceRegisterAsyncNotification cuDeviceUnregisterAsyncNotification
        cuFuncGetParamInfo cuFuncIsLoaded cuFuncLoad cuGreenCtxGetDevResource cuGreenCtxRecordEvent
        cuGreenCtxWaitEvent cuKernelGetParamInfo cuLibraryEnumerateKernels cuLibraryGetKernelCount
        cuModuleEnumerateFunctions cuModuleGetFunctionCount cuStreamGetGreenCtx;
    12050: cuCtxRecordEvent cuCtxWaitEvent cuKernelGetLibrary;
    12080: cuCheckpointProcessGetRestoreThreadId cuTensorMapEncodeIm2colWide;
    12090: cuGreenCtxGetId cuLogsCurrent cuLogsDumpToFile cuLogsDumpToMemory cuLogsRegisterCallback
        cuLogsUnregisterCallback;
    13000: cuDeviceGetHostAtomicCapabilities cuDeviceGetP2PAtomicCapabilities cuMemSetMemPool;
    13010: cuDevSmResourceSplit cuGraphExecGetId cuGraphGetId cuGraphNodeGetContainingGraph
        cuGraphNodeGetLocalId cuGraphNodeGetToolsId;
    13020: cuCoredumpDeregisterCompleteCallback cuCoredumpDeregisterStartCallback
        cuCoredumpRegisterCompleteCallback cuCoredumpRegisterStartCallback cuFuncGetParamCount
        cuGraphNodeGetParams cuKernelGetParamCount;
    13030: cuLogicalEndpointAddDevice cuLogicalEndpointBindAddr cuLogicalEndpointBindMem
        cuLogicalEndpointCreate cuLogicalEndpointDestroy cuLogicalEndpointExport
        cuLogicalEndpointGetLimits cuLogicalEndpointIdRelease cuLogicalEndpointIdReserve
        cuLogicalEndpointImport cuLogicalEndpointQuery cuLogicalEndpointUnbind;
    13040: cuCheckpointOperationComplete cuDeviceGetCliqueCount cuDeviceGetCliqueInfo
        cuDeviceGetFabricClusterUuid cuMemGetLocationInfo;
    13050: cuTensorMapSetAllocationClass;
    99999: cuEGLApiInit cuMemGetAttribute;
    forms {
        cuArray3DGetDescriptor 3020 cuArray3DGetDescriptor_v2;
        cuArrayGetDescriptor 3020 cuArrayGetDescriptor_v2;
        cuDevicePrimaryCtxSetFlags 11000 cuDevicePrimaryCtxSetFlags_v2;
        cuGLGetDevices 6050 cuGLGetDevices_v2;
        cuGraphAddDependencies 12030 cuGraphAddDependencies_v2;
        cuGraphAddKernelNode 12000 cuGraphAddKernelNode_v2;
        cuGraphAddNode 12030 cuGraphAddNode_v2; cuGraphAddNode 13040 cuGraphAddNode_v3;
        cuGraphExecKernelNodeSetParams 12000 cuGraphExecKernelNodeSetParams_v2;
        cuGraphExecUpdate 12000 cuGraphExecUpdate_v2; cuGraphGetEdges 12030 cuGraphGetEdges_v2;
        cuGraphKernelNodeGetParams 12000 cuGraphKernelNodeGetParams_v2;
        cuGraphKernelNodeSetParams 12000 cuGraphKernelNodeSetParams_v2;
        cuGraphNodeGetDependencies 12030 cuGraphNodeGetDependencies_v2;
        cuGraphNodeGetDependentNodes 12030 cuGraphNodeGetDependentNodes_v2;
        cuGraphNodeSetParams 13040 cuGraphNodeSetParams_v2;
        cuGraphRemoveDependencies 12030 cuGraphRemoveDependencies_v2;
        cuGraphicsResourceGetMappedPointer 3020 cuGraphicsResourceGetMappedPointer_v2;
        cuGraphicsResourceSetMapFlags 6050 cuGraphicsResourceSetMapFlags_v2;
        cuLinkAddData 6050 cuLinkAddData_v2; cuLinkAddFile 6050 cuLinkAddFile_v2;
        cuLinkCreate 6050 cuLinkCreate_v2; cuMemAllocHost 3020 cuMemAllocHost_v2;
        cuMemGetAttribute 99999 cuMemGetAttribute_v2;
        cuMemHostGetDevicePointer 3020 cuMemHostGetDevicePointer_v2;
        cuMemHostRegister 6050 cuMemHostRegister_v2; cuModuleGetGlobal 3020 cuModuleGetGlobal_v2;
        cuMulticastBindAddr 13010 cuMulticastBindAddr_v2;
        cuMulticastBindMem 13010 cuMulticastBindMem_v2;
        cuTexRefGetAddress 3020 cuTexRefGetAddress_v2;
        cuTexRefSetAddress2D 3020 cuTexRefSetAddress2D_v2;
        cuTexRefSetAddress2D 4010 cuTexRefSetAddress2D_v3;
        cuTexRefSetAddress 3020 cuTexRefSetAddress_v2;
    }
    twins {
        cuEventRecordWithFlags 11010 cuEventRecordWithFlags / 11010 cuEventRecordWithFlags_ptsz;
        cuFabricCpyBatchAsync 13050 cuFabricCpyBatchAsync / 13050 cuFabricCpyBatchAsync_ptsz;
        cuGLMapBufferObject 3020 cuGLMapBufferObject_v2 / 7000 cuGLMapBufferObject_v2_ptds;
        cuGLMapBufferObjectAsync 3020 cuGLMapBufferObjectAsync_v2 / 7000 cuGLMapBufferObjectAsync_v2_ptsz;
        cuGraphicsMapResources 3000 cuGraphicsMapResources / 7000 cuGraphicsMapResources_ptsz;
        cuGraphicsUnmapResources 3000 cuGraphicsUnmapResources / 7000 cuGraphicsUnmapResources_ptsz;
        cuLaunchHostFunc 10000 cuLaunchHostFunc / 10000 cuLaunchHostFunc_ptsz;
        cuLaunchHostFunc 13010 cuLaunchHostFunc_v2 / 13010 cuLaunchHostFunc_v2_ptsz;
        cuMemBatchDecompressAsync 12060 cuMemBatchDecompressAsync / 12060 cuMemBatchDecompressAsync_ptsz;
        cuMemDiscardAndPrefetchBatchAsync 13000 cuMemDiscardAndPrefetchBatchAsync / 13000 cuMemDiscardAndPrefetchBatchAsync_ptsz;
        cuMemDiscardBatchAsync 13000 cuMemDiscardBatchAsync / 13000 cuMemDiscardBatchAsync_ptsz;
        cuMemPrefetchBatchAsync 13000 cuMemPrefetchBatchAsync / 13000 cuMemPrefetchBatchAsync_ptsz;
        cuMemcpy2D 3020 cuMemcpy2D_v2 / 7000 cuMemcpy2D_v2_ptds;
        cuMemcpy2DAsync 3020 cuMemcpy2DAsync_v2 / 7000 cuMemcpy2DAsync_v2_ptsz;
        cuMemcpy2DUnaligned 3020 cuMemcpy2DUnaligned_v2 / 7000 cuMemcpy2DUnaligned_v2_ptds;
        cuMemcpy3D 3020 cuMemcpy3D_v2 / 7000 cuMemcpy3D_v2_ptds;
        cuMemcpy3DAsync 3020 cuMemcpy3DAsync_v2 / 7000 cuMemcpy3DAsync_v2_ptsz;
        cuMemcpy3DBatchAsync 12080 cuMemcpy3DBatchAsync / 12080 cuMemcpy3DBatchAsync_ptsz;
        cuMemcpy3DBatchAsync 13000 cuMemcpy3DBatchAsync_v2 / 13000 cuMemcpy3DBatchAsync_v2_ptsz;
        cuMemcpy3DPeer 4000 cuMemcpy3DPeer / 7000 cuMemcpy3DPeer_ptds;
        cuMemcpy3DPeerAsync 4000 cuMemcpy3DPeerAsync / 7000 cuMemcpy3DPeerAsync_ptsz;
        cuMemcpy3DWithAttributesAsync 13020 cuMemcpy3DWithAttributesAsync / 13020 cuMemcpy3DWithAttributesAsync_ptsz;
        cuMemcpyAtoA 3020 cuMemcpyAtoA_v2 / 7000 cuMemcpyAtoA_v2_ptds;
        cuMemcpyAtoD 3020 cuMemcpyAtoD_v2 / 7000 cuMemcpyAtoD_v2_ptds;
        cuMemcpyAtoH 3020 cuMemcpyAtoH_v2 / 7000 cuMemcpyAtoH_v2_ptds;
        cuMemcpyAtoHAsync 3020 cuMemcpyAtoHAsync_v2 / 7000 cuMemcpyAtoHAsync_v2_ptsz;
        cuMemcpyBatchAsync 12080 cuMemcpyBatchAsync / 12080 cuMemcpyBatchAsync_ptsz;
        cuMemcpyBatchAsync 13000 cuMemcpyBatchAsync_v2 / 13000 cuMemcpyBatchAsync_v2_ptsz;
        cuMemcpyDtoA 3020 cuMemcpyDtoA_v2 / 7000 cuMemcpyDtoA_v2_ptds;
        cuMemcpyHtoA 3020 cuMemcpyHtoA_v2 / 7000 cuMemcpyHtoA_v2_ptds;
        cuMemcpyHtoAAsync 3020 cuMemcpyHtoAAsync_v2 / 7000 cuMemcpyHtoAAsync_v2_ptsz;
        cuMemcpyPeer 4000 cuMemcpyPeer / 7000 cuMemcpyPeer_ptds;
        cuMemcpyPeerAsync 4000 cuMemcpyPeerAsync / 7000 cuMemcpyPeerAsync_ptsz;
        cuMemcpyWithAttributesAsync 13020 cuMemcpyWithAttributesAsync / 13020 cuMemcpyWithAttributesAsync_ptsz;
        cuMemsetD2D16Async 3020 cuMemsetD2D16Async / 7000 cuMemsetD2D16Async_ptsz;
        cuMemsetD2D32Async 3020 cuMemsetD2D32Async / 7000 cuMemsetD2D32Async_ptsz;
        cuMemsetD2D8Async 3020 cuMemsetD2D8Async / 7000 cuMemsetD2D8Async_ptsz;
        cuSignalExternalSemaphoresAsync 10000 cuSignalExternalSemaphoresAsync / 10000 cuSignalExternalSemaphoresAsync_ptsz;
        cuStreamAddCallback 5000 cuStreamAddCallback / 7000 cuStreamAddCallback_ptsz;
        cuStreamAttachMemAsync 6000 cuStreamAttachMemAsync / 7000 cuStreamAttachMemAsync_ptsz;
        cuStreamBatchMemOp 11070 cuStreamBatchMemOp_v2 / 11070 cuStreamBatchMemOp_v2_ptsz;
        cuStreamBatchMemOp 8000 cuStreamBatchMemOp / 8000 cuStreamBatchMemOp_ptsz;
        cuStreamBeginCaptureToCig 13010 cuStreamBeginCaptureToCig / 13010 cuStreamBeginCaptureToCig_ptsz;
        cuStreamBeginCaptureToGraph 12030 cuStreamBeginCaptureToGraph / 12030 cuStreamBeginCaptureToGraph_ptsz;
        cuStreamBeginRecaptureToGraph 13030 cuStreamBeginRecaptureToGraph / 13030 cuStreamBeginRecaptureToGraph_ptsz;
        cuStreamCopyAttributes 11000 cuStreamCopyAttributes / 11000 cuStreamCopyAttributes_ptsz;
        cuStreamEndCaptureToCig 13010 cuStreamEndCaptureToCig / 13010 cuStreamEndCaptureToCig_ptsz;
        cuStreamGetAttribute 11000 cuStreamGetAttribute / 11000 cuStreamGetAttribute_ptsz;
        cuStreamGetCaptureInfo 10010 cuStreamGetCaptureInfo / 10010 cuStreamGetCaptureInfo_ptsz;
        cuStreamGetCaptureInfo 11030 cuStreamGetCaptureInfo_v2 / 11030 cuStreamGetCaptureInfo_v2_ptsz;
        cuStreamGetCaptureInfo 12030 cuStreamGetCaptureInfo_v3 / 12030 cuStreamGetCaptureInfo_v3_ptsz;
        cuStreamGetDevResource 13010 cuStreamGetDevResource / 13010 cuStreamGetDevResource_ptsz;
        cuStreamGetDevice 12080 cuStreamGetDevice / 12080 cuStreamGetDevice_ptsz;
        cuStreamGetFlags 5050 cuStreamGetFlags / 7000 cuStreamGetFlags_ptsz;
        cuStreamGetId 12000 cuStreamGetId / 12000 cuStreamGetId_ptsz;
        cuStreamSetAttribute 11000 cuStreamSetAttribute / 11000 cuStreamSetAttribute_ptsz;
        cuStreamUpdateCaptureDependencies 11030 cuStreamUpdateCaptureDependencies / 11030 cuStreamUpdateCaptureDependencies_ptsz;
        cuStreamUpdateCaptureDependencies 12030 cuStreamUpdateCaptureDependencies_v2 / 12030 cuStreamUpdateCaptureDependencies_v2_ptsz;
        cuStreamWaitValue32 8000 cuStreamWaitValue32 / 8000 cuStreamWaitValue32_ptsz;
        cuStreamWaitValue64 11070 cuStreamWaitValue64_v2 / 11070 cuStreamWaitValue64_v2_ptsz;
        cuStreamWaitValue64 9000 cuStreamWaitValue64 / 9000 cuStreamWaitValue64_ptsz;
        cuStreamWriteValue32 11070 cuStreamWriteValue32_v2 / 11070 cuStreamWriteValue32_v2_ptsz;
        cuStreamWriteValue32 8000 cuStreamWriteValue32 / 8000 cuStreamWriteValue32_ptsz;
        cuStreamWriteValue64 11070 cuStreamWriteValue64_v2 / 11070 cuStreamWriteValue64_v2_ptsz;
        cuStreamWriteValue64 9000 cuStreamWriteValue64 / 9000 cuStreamWriteValue64_ptsz;
        cuWaitExternalSemaphoresAsync 10000 cuWaitExternalSemaphoresAsync / 10000 cuWaitExternalSemaphoresAsync_ptsz;
    }
}
