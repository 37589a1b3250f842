// Swagger UI with what the service says of itself.

SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  tryItOutEnabled: false,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
});
