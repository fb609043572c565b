//! Changes by the user that may prevent a failure.

/// A change by the user that may prevent a failure. The library does not know the options of a
/// program: each program prints the option, field or command for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Remedy {
    /// Choose at compile time, or run the model file instead of a plan.
    ChooseAtCompile,
    /// Run code for another CPU in the emulator.
    Emulate,
    /// Emulate a kernel on its own.
    EmulateKernel,
    /// Replay a recorded call in the emulator instead of on this CPU.
    EmulateReplay,
    /// Compile the model for embeddings.
    CompileEmbeddings,
    /// Compile the model for text, or serve its embeddings.
    CompileText,
    /// Compile with early routers, or use another predictor of experts.
    PredictExperts,
    /// Do not read experts from memory-mapped files, or compile for streaming.
    UnmapExperts,
    /// Replace the plan by a model file, passed with the option for model files.
    NameModelFile,
    /// Name the model file that the plan was made from.
    FindModelFile,
    /// Name the model file that matches the plan, or compile again.
    OtherModelFile,
    /// Choose a chat template for the model.
    ChatTemplate,
    /// Raise the context length.
    LargerContext,
    /// Compile for steps that hold all tokens of the text.
    LargerStep,
    /// Score the text in shorter pieces.
    ShorterPieces,
    /// Quantise weights that are already quantised, in spite of the added error.
    Requantise,
    /// Replace the existing output file, although it has another format.
    ReplaceFile,
    /// Discard the existing record of an earlier run, and begin again.
    StartOver,
    /// Select one of the kernels of a model.
    SelectKernel,
    /// Pass the run-time sizes of a kernel.
    KernelSizes,
    /// Compare an edited kernel with the original one, or run it without a comparison.
    CompareKernel,
    /// Write the kernels of a model as files.
    WriteKernels,
    /// Write kernels together with their specs.
    WriteSpecs,
    /// Pass the command that fails for the kernel to be reduced.
    FailingCommand,
    /// Pass the file of tuning results for a target that this machine does not support.
    TunedFile,
    /// Pass the path of the file with tuning results.
    TunedPlace,
    /// Raise the system's limit of locked memory, or do not lock memory.
    LockLess,
    /// Compile the whole model, not only its layers of experts.
    CompileSteps,
    /// Compile for several ranks, or run the model file instead of a plan.
    CompileRanks,
    /// Compile only the layers of experts.
    CompileLayers,
    /// Compile with experts in the model file's layout, or with experts packed into the plan file.
    StoreExperts,
    /// List the models that this build reads.
    ListModels,
    /// Record a trace.
    RecordTrace,
    /// Use the model for embeddings.
    UseEmbeddings,
    /// Serve embeddings of the model.
    ServeEmbeddings,
    /// Add a host name to the names that the server accepts.
    AllowHost,
    /// Allow web pages of another origin to call the server.
    AllowOrigin,
    /// Pass the folder for saved sequences.
    SlotFolder,
}
