//! Graph to Program to Plan to Session to Timeline: differentiation, fusion, memory placement, execution.
