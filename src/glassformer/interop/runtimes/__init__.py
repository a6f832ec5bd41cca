"""Programs that run models (ONNX, llama.cpp, CTranslate2): each file run, or read back, before it is kept."""
