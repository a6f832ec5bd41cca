"""Export to runtimes (ONNX, llama.cpp, CTranslate2): each file is run or read back before the export is kept."""
