// Gives the page the samples of the microphone, block by block. It runs in the thread of the sound.
const BLOCK = 2048;

/** @type {any} */
const scope = globalThis;
class Blocks extends scope.AudioWorkletProcessor {
  block = new Float32Array(BLOCK);
  filled = 0;

  /** @param {Float32Array[][]} inputs */
  process([[samples]]) {
    if (!samples) return true; // nothing is connected yet
    this.block.set(samples, this.filled); // 128 samples, of which a block has a whole number
    this.filled += samples.length;
    if (this.filled < BLOCK) return true;
    this.port.postMessage(this.block);
    [this.block, this.filled] = [new Float32Array(BLOCK), 0];
    return true;
  }
}
scope.registerProcessor("blocks", Blocks);
