// Search without a server: browsers start no worker from file://, so there it runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const script = frame.contentDocument.createElement("script");
      script.src = url;
      frame.contentWindow.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded = new Promise((resolve) => (script.onload = () => resolve(frame.contentWindow)));
      frame.contentDocument.body.append(script);
    }

    postMessage(data) {
      this.loaded.then((frame) => frame.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
